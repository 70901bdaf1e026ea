"""Argparse front ends: they turn words into calls, and errors into exit codes and hints."""
