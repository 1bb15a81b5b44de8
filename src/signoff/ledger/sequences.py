"""Sets of sequence numbers: Roaring bitmaps, built and stored the fast way.

A batch of a million events that were all delivered is one run of a few bytes; one of which every
second event was filtered is a bit per event. Bitmaps passed around are never changed in place
after they were handed over.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from pyroaring import BitMap64


def from_numpy(values: np.ndarray[Any, Any]) -> BitMap64:
    """The set of an integer array. Through `array`, which is ten times faster than the ndarray itself."""
    return BitMap64(array("Q", np.ascontiguousarray(values).astype(np.uint64, copy=False).tobytes()))


def from_range(start: int, end: int) -> BitMap64:
    """The set of all numbers from `start` up to, not including, `end`."""
    return BitMap64(range(start, end)) if end > start else BitMap64()


def to_bytes(numbers: BitMap64) -> bytes:
    """The portable Roaring serialisation, with runs. Empty sets are empty bytes."""
    if not numbers:
        return b""
    compact = numbers.copy()
    compact.run_optimize()
    return bytes(compact.serialize())


def from_bytes(stored: bytes | None) -> BitMap64:
    return BitMap64.deserialize(stored) if stored else BitMap64()


def count_between(numbers: BitMap64, start: int, end: int) -> int:
    """How many of `numbers` lie in [start, end)."""
    return int(numbers.range_cardinality(start, end)) if end > start else 0


def ranges(numbers: BitMap64) -> Iterator[tuple[int, int]]:
    """The maximal runs [start, end) of the set, in order."""
    if not numbers:
        return
    values = np.frombuffer(numbers.to_array(), np.uint64)
    breaks = np.flatnonzero(np.diff(values) != 1)
    starts = values[np.concatenate(([0], breaks + 1))]
    ends = values[np.concatenate((breaks, [len(values) - 1]))] + np.uint64(1)
    yield from zip(starts.tolist(), ends.tolist(), strict=True)


def runs(numbers: BitMap64) -> Iterator[tuple[int, int]]:
    """As `ranges`, for sets of few runs, however long: nothing is made of their single numbers."""
    begin = numbers.min() if numbers else None
    while begin is not None:
        end = begin + 1
        while end in numbers:  # doubling, then the exact end
            step = 1
            while numbers.contains_range(end, end + step * 2):
                step *= 2
            end += step
        yield int(begin), int(end)
        begin = next(iter(numbers.iter_equal_or_larger(end)), None)


def describe(numbers: Iterable[int], limit: int = 5) -> str:
    """A short text for people: `3, 7–9, 12 and 40 more`."""
    chosen = numbers if isinstance(numbers, BitMap64) else BitMap64(numbers)
    parts: list[str] = []
    shown = 0
    for start, end in ranges(chosen):
        if len(parts) == limit:
            return ", ".join(parts) + f" and {len(chosen) - shown} more"
        parts.append(str(start) if end - start == 1 else f"{start}–{end - 1}")
        shown += end - start
    return ", ".join(parts)
