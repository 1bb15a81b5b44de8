"""Which windows a time belongs to. Windows are aligned to the epoch, as Spark's are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

_MILLISECOND = 1000
Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]


class Spread(Protocol):
    """What times belong to, and when that is over; all in microseconds."""

    @property
    def size(self) -> int:
        """From a start to the end of what it belongs to."""

    @property
    def sliding(self) -> bool:
        """A time belongs to several."""

    def spread(self, times: Numbers, closed: int | None) -> tuple[Numbers, Numbers]:
        """Those of each time that are not closed: the place of the time, and the start."""

    def last_end(self, micros: str) -> str:
        """SQL: a time is in none of them any more when the mark has come here."""

    def first_end(self, micros: str) -> str:
        """SQL: the same for the first of them."""


@dataclass(frozen=True)
class Panes:
    """Windows of one size, one every so often; all in microseconds."""

    size: int
    every: int

    @property
    def sliding(self) -> bool:
        """A time belongs to several windows."""
        return self.every < self.size

    def spread(self, times: Numbers, closed: int | None) -> tuple[Numbers, Numbers]:
        """The windows of each time that are not closed: the place of the time, and the window's start."""
        last = times - times % self.every
        places, starts = [np.arange(len(times))], [last]
        for step in range(1, -(-self.size // self.every)):
            earlier = last - step * self.every
            inside = np.flatnonzero(earlier + self.size > times)
            places.append(inside)
            starts.append(earlier[inside])
        place, start = np.concatenate(places), np.concatenate(starts)
        if closed is None:
            return place, start
        still = start + self.size > closed
        return place[still], start[still]

    def last_end(self, micros: str) -> str:
        """SQL: the end of the latest window that a time is in."""
        return f"({micros} - pmod({micros}, {self.every}) + {self.size})"

    def first_end(self, micros: str) -> str:
        """SQL: the end of the earliest window that a time is in."""
        before = f"({micros} - {self.size})"
        return f"({before} - pmod({before}, {self.every}) + {self.every + self.size})"


@dataclass(frozen=True)
class Moments:
    """Each time for itself, of which something else depends for a time; to the millisecond, as marks are."""

    size: int
    """How long after it another time may still be put together with it."""
    sliding: bool = False

    def spread(self, times: Numbers, closed: int | None) -> tuple[Numbers, Numbers]:
        return np.arange(len(times)), times - times % _MILLISECOND

    def last_end(self, micros: str) -> str:
        return f"({micros} + 1)"

    def first_end(self, micros: str) -> str:
        return self.last_end(micros)
