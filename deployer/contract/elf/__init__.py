"""What an ELF file says of itself."""
