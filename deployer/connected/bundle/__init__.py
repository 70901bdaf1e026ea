"""Bundles: flatten, compress and seal an image into one file, and read such files."""
