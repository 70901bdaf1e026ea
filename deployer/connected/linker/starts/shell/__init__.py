"""What a shell script starts."""
