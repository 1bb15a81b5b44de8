"""Which windows a time belongs to. Windows are aligned to the epoch, as Spark's are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]


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
