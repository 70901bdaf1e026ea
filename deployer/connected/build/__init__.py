"""From a definition to an image: the definition, its bases, its wheelhouse, its Horovod variants, and lint."""
