"""What a pipeline has done lately: samples of its counts, of which only so many are kept.

Each second of the last quarter of an hour, and each minute of the last day. Counts are those of the ledger,
so nothing is missed between two samples; what is drawn are differences.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from signoff.intake.settle_times import BOUNDS_S

Key = tuple[str, str]
"""What is counted, and of which node: ("received", "incoming")."""
Span = Literal["quarter", "day"]

LENGTH_S: Mapping[Span, float] = {"quarter": 900.0, "day": 86_400.0}
_EVERY_S: Mapping[Span, float] = {"quarter": 1.0, "day": 60.0}
_SLACK = 0.5
"""Samples that come a bit early are kept all the same."""
RATE_OVER_S = 6.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One moment."""

    steady: float
    """By the monotonic clock, of which differences are taken."""
    at: float
    """Seconds since the epoch."""
    counts: Mapping[Key, float]


@dataclass(frozen=True, slots=True)
class Series:
    """Values at equal distances, the last one now; None: not known."""

    span: Span
    values: tuple[float | None, ...]

    @property
    def most(self) -> float:
        return max((value for value in self.values if value is not None), default=0.0)

    @property
    def last(self) -> float | None:
        return next((value for value in reversed(self.values) if value is not None), None)


class History:
    """Filled by one thread, read by several."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[Span, deque[Sample]] = {span: deque() for span in LENGTH_S}

    def add(self, sample: Sample) -> None:
        with self._lock:
            for span, kept in self._kept.items():
                if not kept or sample.steady - kept[-1].steady >= _EVERY_S[span] * _SLACK:
                    kept.append(sample)
                while sample.steady - kept[0].steady > LENGTH_S[span] and len(kept) > 1:
                    kept.popleft()

    def samples(self, span: Span) -> list[Sample]:
        with self._lock:
            return list(self._kept[span])

    def rate(self, key: Key, over_s: float = RATE_OVER_S) -> float | None:
        """By how much a count has grown a second, lately; None before it is known."""
        samples = self.samples("quarter")
        if len(samples) < 2:
            return None
        last = samples[-1]
        first = next(each for each in samples if last.steady - each.steady <= over_s or each is samples[-2])
        if key not in last.counts or key not in first.counts:
            return None
        return max(last.counts[key] - first.counts[key], 0.0) / (last.steady - first.steady)

    def rates(self, key: Key, span: Span, points: int = 90) -> Series:
        """How fast a count grew, over the whole span."""
        return self._series(key, span, points, rates=True)

    def values(self, key: Key, span: Span, points: int = 90) -> Series:
        """The value itself, over the whole span."""
        return self._series(key, span, points, rates=False)

    def _series(self, key: Key, span: Span, points: int, *, rates: bool) -> Series:
        samples = [each for each in self.samples(span) if key in each.counts]
        if not samples:
            return Series(span, (None,) * points)
        now, step = samples[-1].steady, LENGTH_S[span] / points
        values: list[float | None] = []
        index, before = 0, None
        for number in range(points):
            end = now - LENGTH_S[span] + (number + 1) * step + 1e-6
            first = before
            while index < len(samples) and samples[index].steady <= end:
                before, index = samples[index], index + 1
            values.append(_between(first, before, key) if rates else _held(before, first, key))
        return Series(span, tuple(values))

    def settle_times(self, source: str, span: Span) -> SettleTimes | None:
        """How long events took that were settled within the span; None if none was."""
        samples = self.samples(span)
        counts = [0.0] * (len(BOUNDS_S) + 1)
        for index in range(len(counts)):
            key = (f"took {index}", source)
            values = [each.counts[key] for each in samples if key in each.counts]
            # A new process of the intake begins with 0 again.
            counts[index] = sum(
                after - before if after >= before else after for before, after in pairwise(values)
            )
        return SettleTimes(tuple(counts)) if sum(counts) else None


@dataclass(frozen=True, slots=True)
class SettleTimes:
    """A histogram: events by the time from their receipt until the source was told."""

    counts: tuple[float, ...]

    @property
    def events(self) -> int:
        return round(sum(self.counts))

    def bound(self, share: float) -> float | None:
        """So many of the events took no longer than this; None: longer than the longest that is told
        apart."""
        wanted, seen = share * sum(self.counts), 0.0
        for bound, number in zip(BOUNDS_S, self.counts, strict=False):
            seen += number
            if seen >= wanted:
                return bound
        return None

    def buckets(self) -> Sequence[tuple[float | None, int]]:
        """Upper bound (None: beyond all) and number of events."""
        return [(bound, round(number)) for bound, number in zip((*BOUNDS_S, None), self.counts, strict=True)]


def _between(first: Sample | None, last: Sample | None, key: Key) -> float | None:
    if first is None or last is None:
        return None
    if last is first:
        return None
    return max(last.counts[key] - first.counts[key], 0.0) / (last.steady - first.steady)


def _held(last: Sample | None, before: Sample | None, key: Key) -> float | None:
    found = last or before
    return None if found is None else found.counts[key]
