"""From an image to one sealed file: flatten, compress, seal, and what is read from such a file."""
