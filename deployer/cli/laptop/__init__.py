"""The laptop's command line."""
