"""Command lines with argparse: from words to calls, and from errors to exit codes and hints."""
