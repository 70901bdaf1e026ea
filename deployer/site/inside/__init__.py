"""Jobs that start inside-out, with one container per node that runs the image's own MPI and launcher."""
