"""The streaming queries that keep the state of windows and folds."""
