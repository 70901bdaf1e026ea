"""Submitted jobs: their state, their result, the scheduler."""
