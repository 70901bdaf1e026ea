"""Training scripts that others published, unmodified: what a rehearsal is tried on (docs/evidence/rehearsals.md)."""
