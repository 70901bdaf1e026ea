"""From a changed file to a running job with one command. Stages run in order; unchanged stages are skipped."""
