"""What the user wrote: definition, Dockerfile, settings."""
