"""Rules: what can be wrong, each in a function that yields findings."""
