"""What runs in each rank and beside it: the probe and the proof."""
