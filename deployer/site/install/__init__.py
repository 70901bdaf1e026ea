"""Installation of bundles as images, and removal of images."""
