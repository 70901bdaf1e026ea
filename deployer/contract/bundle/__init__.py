"""What travels: the manifest, its jobs, the seal and deltas."""
