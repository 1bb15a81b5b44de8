"""Sink `files`: complete files, each batch exactly once."""
