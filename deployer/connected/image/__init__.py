"""Build an image from a definition: definitions, bases, wheelhouses, Horovod variants, and lint."""
