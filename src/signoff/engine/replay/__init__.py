"""Replaying dead letters: which, as which batch, and what became of each."""
