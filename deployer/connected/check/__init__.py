"""The verdict on a bundle at a site, from captured facts, before the bundle is sent."""
