"""Facts about one site, and the plan that follows from them for a bundle."""
