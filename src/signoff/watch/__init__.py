"""A run as people see it: progress, windows, folds."""
