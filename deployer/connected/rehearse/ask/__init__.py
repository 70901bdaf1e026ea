"""A rehearsal from its request to its verdict."""
