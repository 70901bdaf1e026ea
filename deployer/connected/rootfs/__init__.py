"""Root filesystems from archives, folders and layers of images."""
