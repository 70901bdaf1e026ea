"""Site profiles, and plans of bundles for a site."""
