"""The dry link: predicts, from facts alone, what the dynamic loader would do in a container that does not exist yet."""
