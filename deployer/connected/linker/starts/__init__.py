"""The programs that a job starts: its command is followed through wrappers, shell scripts and Python. Nothing is run."""
