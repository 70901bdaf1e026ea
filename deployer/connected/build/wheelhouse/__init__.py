"""The wheels that a bundle carries beside its image: resolved, locked, fetched."""
