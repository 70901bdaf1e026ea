"""From a bundle to an installed image, and its removal."""
