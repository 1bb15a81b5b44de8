"""Up to where the input of a run was complete: the least of what its tables say.

Invariant: nothing is claimed that a table did not say. One that says nothing (it is empty) leaves that of all
unknown; and of texts that are neither all numbers nor all times nobody can tell which is the least.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any


def least(said: Sequence[str | None]) -> str | None:
    """Of the texts of all tables that are to say it, that of the least number or time."""
    if not said or None in said:
        return None
    texts = [text for text in said if text is not None]
    if len(set(texts)) == 1:
        return texts[0]
    for read in (_number, _moment):
        values = _all(read, texts)
        if values is not None:
            return texts[values.index(min(values))]
    return None


def _all(read: Callable[[str], Any], texts: Sequence[str]) -> list[Any] | None:
    try:
        return [read(text) for text in texts]
    except (ValueError, InvalidOperation, OverflowError):
        return None


def _number(text: str) -> Decimal:
    number = Decimal(text)
    if not number.is_finite():
        raise ValueError
    return number


def _moment(text: str) -> datetime:
    """As SQLite, PostgreSQL and Spark write it; a day is its beginning."""
    moment = datetime.fromisoformat(text.strip())
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
