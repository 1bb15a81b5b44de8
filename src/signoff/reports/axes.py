"""Where the marks of an axis are: at round numbers and round times, few enough to be read."""

from __future__ import annotations

import math
from datetime import date, datetime, timedelta
from typing import Any

_STEPS_S = [
    1, 5, 15, 30, 60, 300, 900, 1800, 3600, 3 * 3600, 6 * 3600, 12 * 3600,
    *(86400 * days for days in (1, 2, 7, 14, 28, 91, 182, 365, 730, 1825, 3650, 9125, 36500)),
]  # fmt: skip

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
"""Not those of the machine's language: the same rows give the same report everywhere."""


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers from below `low` to above `high`."""
    if not high > low:
        high = low + (abs(low) or 1.0)
    step = _round_step((high - low) / max(most - 1, 1))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, last + 1)]


def _round_step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return power * next(factor for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * (1 - 1e-9))


def decimals_of_step(marks: list[float]) -> int:
    """How many decimals tell marks apart."""
    if len(marks) < 2:
        return 0
    step = marks[1] - marks[0]
    return next((digits for digits in range(10) if abs(round(step, digits) - step) < step * 1e-6), 10)


def seconds(value: Any) -> float:
    """A day or a time without zone as a number that can be drawn."""
    moment = value if isinstance(value, datetime) else datetime(value.year, value.month, value.day)
    return (moment - datetime(1970, 1, 1)).total_seconds()


def time_step(low: float, high: float, most: int = 6) -> int:
    """A round number of seconds between the marks from one time to another."""
    return next((step for step in _STEPS_S if (high - low) / step <= most), _STEPS_S[-1])


def time_ticks(low: float, high: float, most: int = 6) -> list[tuple[float, str]]:
    """Round times between two, in seconds, and their texts. `low` and `high` are of `seconds`."""
    step = time_step(low, high, most)
    first = math.ceil(low / step)
    numbers = range(first, math.floor(high / step) + 1)
    marks = [float(number * step) for number in numbers] or [low]
    moments = [datetime(1970, 1, 1) + timedelta(seconds=mark) for mark in marks]
    one_day = (datetime(1970, 1, 1) + timedelta(seconds=low)).date() == (
        datetime(1970, 1, 1) + timedelta(seconds=high)
    ).date()
    return [(mark, _text(moment, step, one_day)) for mark, moment in zip(marks, moments, strict=True)]


def _text(moment: datetime, step: float, one_day: bool) -> str:
    if step >= 86400:
        return date(moment.year, moment.month, moment.day).isoformat()
    if step < 60:
        return moment.strftime("%H:%M:%S")
    return moment.strftime("%H:%M") if one_day else f"{moment.day} {_MONTHS[moment.month - 1]} {moment:%H:%M}"
