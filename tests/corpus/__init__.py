"""Training scripts that others published, run unmodified: what a rehearsal is tried on (docs/rehearsals.md)."""
