"""Bundles that arrive on several media, or encrypted."""
