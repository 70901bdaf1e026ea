"""From an installed image to a submitted batch script or a process."""
