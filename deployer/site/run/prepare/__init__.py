"""prepare: from a request to job.sh and job.json: resolve -> start_option -> ranks -> render."""
