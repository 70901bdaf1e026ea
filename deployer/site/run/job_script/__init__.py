"""The text of a job's batch script."""
