"""Observe the programs of a rehearsal."""
