"""The programs that a job starts, following its command through wrappers, shell scripts and Python. Nothing is run."""
