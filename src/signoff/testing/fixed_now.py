"""The time of a test in SQL: `now()` and its kin become the time that the test gives.

Spark takes the time of the machine when it plans a query, and lets nobody say another. So the text of
expressions is changed before it is compiled: outside quotes and comments, and only whole words. A text that
is no expression stays: a schema may name a column `current_date`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

from pydantic import BaseModel

from signoff.pipeline.model import TransformConfig

T = TypeVar("T", bound=TransformConfig)

_PASSED_OVER = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`|--[^\n]*|/\*.*?\*/"
_CALLS, _WORDS = "now|curdate", "current_timestamp|current_date|localtimestamp"
_TIMES = rf"(?<![\w.])(?:(?P<call>{_CALLS})\s*\(\s*\)|(?P<word>{_WORDS})\b(?:\s*\(\s*\))?)"
_FOUND = re.compile(f"{_PASSED_OVER}|{_TIMES}", re.IGNORECASE | re.DOTALL)


EXPRESSIONS: Mapping[str, tuple[str, ...]] = {
    "filter": ("where",),
    "select": ("columns",),
    "route": ("routes",),
    "validate": ("rules",),
    "unfold": ("column",),
    "merge": ("columns",),
    "window": ("aggregates",),
    "fold": ("until", "columns"),
    "sample": ("key",),
}
"""The fields of transforms that hold SQL. Other transforms have none."""
_IN_MODELS = ("where",)
"""The same of what is written inside such a field: a rule has a `reason` as well."""


def at(now: datetime, sql: str) -> str:
    """An expression in which it is that time."""
    moment = now.astimezone(UTC)

    def replace(found: re.Match[str]) -> str:
        word = (found["call"] or found["word"] or "").lower()
        if not word:
            return found[0]
        if word in ("current_date", "curdate"):
            return f"DATE'{moment:%Y-%m-%d}'"
        kind = "TIMESTAMP_NTZ" if word == "localtimestamp" else "TIMESTAMP"
        zone = "" if word == "localtimestamp" else "Z"
        return f"{kind}'{moment:%Y-%m-%dT%H:%M:%S.%f}{zone}'"

    return _FOUND.sub(replace, sql)


def with_now(config: T, now: datetime) -> T:
    """A transform whose expressions find that time."""
    changed = {
        name: _changed(value, now)
        for name, value in config.__dict__.items()
        if name in EXPRESSIONS.get(config.type, ())
    }
    different = {name: value for name, value in changed.items() if value is not getattr(config, name)}
    return config.model_copy(update=different) if different else config


def _changed(value: Any, now: datetime) -> Any:
    """The value itself where nothing in it changes."""
    if isinstance(value, str):
        text = at(now, value)
        return value if text == value else text
    if isinstance(value, Mapping):
        parts = {key: _changed(part, now) for key, part in value.items()}
        return value if all(parts[key] is part for key, part in value.items()) else parts
    if isinstance(value, list | tuple):
        several = [_changed(part, now) for part in value]
        return value if all(map(_is, several, value)) else type(value)(several)
    if isinstance(value, BaseModel):
        fields = {name: _changed(part, now) for name, part in value.__dict__.items() if name in _IN_MODELS}
        update = {name: part for name, part in fields.items() if part is not value.__dict__[name]}
        return value.model_copy(update=update) if update else value
    return value


def _is(one: object, other: object) -> bool:
    return one is other
