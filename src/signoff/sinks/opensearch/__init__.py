"""Sinks `opensearch` and `elasticsearch`: documents by `_bulk`, keyed by event id."""
