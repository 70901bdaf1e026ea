"""fetch: run a job once with internet, and keep what it downloads for sites without."""
