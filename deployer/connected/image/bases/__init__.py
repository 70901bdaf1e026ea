"""Base images: pulled by digest, imported from archives, or made from Debian packages."""
