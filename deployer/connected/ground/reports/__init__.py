"""Tables, plots and HTML pages of jobs and bundles."""
