"""Everything that can be read as a root filesystem: archives, folders, layers of images."""
