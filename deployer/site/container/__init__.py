"""Containers made from installed images: binds, environment, runtimes."""
