"""The simulated site of a rehearsal."""
