"""The dry link: what the dynamic loader would do in a container that does not exist yet, from facts alone."""
