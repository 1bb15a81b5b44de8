"""Durations as a user writes them: `30s`, `500ms`, `2m`, or a number of seconds."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator, WithJsonSchema

DURATION = r"^\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?\s*$"
UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def _seconds(value: object) -> object:
    if not isinstance(value, str):
        return value
    match = re.match(DURATION, value)
    if match is None:
        raise ValueError(f'"{value}" is not a duration; write 30s, 500ms or 2m')
    return float(match[1]) * UNITS[match[2] or "s"]


Duration = Annotated[
    float,
    BeforeValidator(_seconds),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "string", "pattern": DURATION}]}),
]
"""Seconds, or text such as `30s`, `500ms`, `2m`."""
