"""The result of a job, from the records of its ranks."""
