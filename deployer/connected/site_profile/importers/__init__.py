"""Drafts of site profiles from the configuration files of a batch system. They are read as text, never executed."""
