"""A file or a Python program becomes a checked graph."""
