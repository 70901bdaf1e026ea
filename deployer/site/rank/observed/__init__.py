"""What a running payload has loaded, and what the kernel says of it."""
