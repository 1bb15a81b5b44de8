"""Names of columns that are made while a log is read. Apart, because whoever plans a reading loads it."""

from __future__ import annotations

EARLY = "_early_"
"""Begins the names of columns that a step has made of the payload while the log was read."""
WHOLE = "_whole"
"""A column that says of an event, where its log is read with such columns, that it has no error."""
