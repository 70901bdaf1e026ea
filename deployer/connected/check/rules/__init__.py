"""The rules of check, a module for each topic."""
