"""Jobs that start inside-out: one container per node, with the image's own MPI and launcher in it."""
