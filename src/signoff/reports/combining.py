"""Several values as one, whatever they are: nothing here fails for what a row may hold."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

MOST_DRAWN = 1e300
LEAST_DRAWN = 1e-300
"""Sizes of numbers between which axes can be computed; smaller ones are drawn as zero."""


def mean(values: Sequence[Any]) -> float:
    """Also where the sum is more than a float holds; not a number, if there are infinities of both signs."""
    try:
        return statistics.fmean(values)
    except (OverflowError, ValueError):
        return sum(float(value) / len(values) for value in values)


COMBINED: Mapping[str, Callable[[list[Any]], Any]] = {
    "sum": sum,
    "mean": mean,
    "min": min,
    "max": max,
    "count": len,
    "first": lambda values: values[0],
}


def extreme(function: str, values: Sequence[Any], texts: Sequence[str]) -> int:
    """Which of the values is the least (`min`) or the greatest; by their texts, if they have no order."""
    choose, places = (min if function == "min" else max), range(len(values))
    try:
        return choose(places, key=values.__getitem__)
    except TypeError:  # structs, and lists with a null
        return choose(places, key=texts.__getitem__)


def drawable(value: float) -> float | None:
    """A number as a chart can draw it; None, if it cannot."""
    size = abs(value)
    if not math.isfinite(value) or size > MOST_DRAWN:
        return None
    return value if size >= LEAST_DRAWN else 0.0
