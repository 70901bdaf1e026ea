"""Drafts of site profiles from configuration files of other programs. They are read as text and never executed."""
