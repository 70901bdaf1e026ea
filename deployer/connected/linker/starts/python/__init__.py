"""What a Python program imports and starts."""
