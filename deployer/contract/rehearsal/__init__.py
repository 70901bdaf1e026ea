"""What a rehearsal observed, and what it means."""
