"""Jobs that were submitted: their state, their result, the scheduler."""
