"""Root filesystems from archives, folders and image layers."""
