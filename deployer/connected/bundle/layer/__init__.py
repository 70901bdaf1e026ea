"""The layer of a bundle and the caches that make it quickly."""
