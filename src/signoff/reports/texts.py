"""Values as people read them: 12,345 and 0.25, 2021-05-01 10:00, yes and no; nothing for null."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from datetime import date, datetime, tzinfo
from decimal import Decimal
from typing import Any

from signoff.reports.model import Column

_WORDS = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+|[^\W\d_]+")
_EXACT = 15
"""Digits behind the point beyond which a sum of floats is noise."""
_CENTS = 2
"""So many decimals are shown as they are; what has more is rounded to what a reader can compare."""


def title_of(name: str) -> str:
    """`windowStart` and `window_start` as `Window start`."""
    words = _WORDS.findall(name)
    if not words:
        return name
    kept = [word if word.isupper() and len(word) > 1 else word.lower() for word in words]
    text = " ".join(kept)
    return text[:1].upper() + text[1:]


def is_label(name: str) -> bool:
    """Whether numbers of this name only tell things apart, and are not amounts."""
    words = _WORDS.findall(name)
    return bool(words) and words[-1].lower() in ("id", "ids", "year", "number", "code", "port")


def shown(value: Any, column: Column, zone: tzinfo) -> str:
    """One value of a column."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float | Decimal):
        return number(value, column.decimals, grouped=column.grouped)
    if isinstance(value, datetime):
        return moment(value, zone)
    if isinstance(value, date):
        return value.isoformat()
    return str(value)


def number(value: float | Decimal, decimals: int | None = None, *, grouped: bool = True) -> str:
    """With as many decimals as are asked for, or as it takes."""
    if isinstance(value, float) and not math.isfinite(value):
        return "not a number" if math.isnan(value) else ("∞" if value > 0 else "-∞")
    separator = "," if grouped else ""
    if decimals is not None:
        return f"{value:{separator}.{decimals}f}"
    if value == int(value) and abs(value) < 10**_EXACT:
        return f"{int(value):{separator}d}"
    if isinstance(value, int):
        return f"{value:{separator}d}"
    size = abs(float(value))
    if size < 0.001 or size >= 10**_EXACT:
        return f"{float(value):.3g}"
    digits = 1 if size >= 100 else 2 if size >= 1 else 4
    return f"{value:{separator}.{digits}f}".rstrip("0").rstrip(".")


def decimals_of(values: Iterable[Any]) -> int | None:
    """How many decimals the numbers of a column need, to stand under each other; None: too varied. Amounts of
    money, and whatever else has two decimals or fewer, are shown as they are."""
    sizes = [abs(float(value)) for value in values if value is not None and math.isfinite(value)]
    exact = decimals_in(sizes)
    parts = [size for size in sizes if size and size != int(size)]
    if not parts:
        return 0 if all(size < 10**_EXACT for size in sizes) else None
    if min(parts) < 0.0001 or max(sizes) >= 10**_EXACT:
        return None
    if exact <= _CENTS:
        return exact
    return 4 if max(sizes) < 1 else 2 if max(sizes) < 100 else 1


def decimals_in(sizes: Iterable[float]) -> int:
    """The most decimals that one of them is written with."""
    return max((-int(Decimal(repr(size)).normalize().as_tuple().exponent) for size in sizes), default=0)


def local(value: datetime, zone: tzinfo) -> datetime:
    """As the clocks of a zone showed it, without the zone. A time without a zone is left as it is, and so
    is one that a zone would move out of the years 1 to 9999: 9999-12-31 23:59:59 stands for "for ever"."""
    try:
        return value if value.tzinfo is None else value.astimezone(zone).replace(tzinfo=None)
    except OverflowError:
        return value.replace(tzinfo=None)


def moment(value: datetime, zone: tzinfo) -> str:
    """To the minute, or as exact as it is."""
    here = local(value, zone)
    if here.microsecond:
        return here.isoformat(" ", "milliseconds" if here.microsecond % 1000 == 0 else "microseconds")
    return here.isoformat(" ", "seconds" if here.second else "minutes")
