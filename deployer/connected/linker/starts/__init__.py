"""What a job starts: its command followed through wrappers, shell scripts and Python, by reading alone."""
