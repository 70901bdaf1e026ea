"""The programs that run in each rank and beside it: the probe and the payload's monitor."""
