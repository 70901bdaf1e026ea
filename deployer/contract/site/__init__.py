"""What a site is and how a job runs there: plans, runtimes, places."""
