"""From a changed file to a running job with one command: all stages in order, those without a change skipped."""
