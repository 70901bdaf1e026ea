"""The rules of check, with one module for each topic."""
