"""What the programs of a rehearsal did."""
