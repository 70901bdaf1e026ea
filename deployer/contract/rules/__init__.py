"""Findings and verdicts, and the tables that they come from."""
