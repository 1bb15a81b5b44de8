"""Which row of a link an event of its reader is.

A reader takes every row, in order. Only one that begins without a log of its own leaves out rows: those an
earlier reader has answered already, beyond the first that it has not. What was left out then is noted before
anything is taken, since the numbers of all later events depend on it.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pyroaring import BitMap64

from signoff.durable import write_whole
from signoff.ledger.sequences import from_range, runs


@dataclass(frozen=True, slots=True)
class _Piece:
    """Rows that follow each other, and are all taken."""

    first: int
    """Number of the first event."""
    end: int
    ahead: int
    """How much larger the number of a row is than that of its event."""


class Numbering:
    """The rows from `row` on are the events from `event` on, but for those that are left out."""

    def __init__(self, event: int, row: int, left_out: BitMap64) -> None:
        self._left_out = left_out - from_range(0, row)
        self._pieces: list[_Piece] = []
        for start, end in runs(self._left_out):
            if start > row:
                self._pieces.append(_Piece(event, event + start - row, row - event))
                event += start - row
            row = end
        self._pieces.append(_Piece(event, 2**62, row - event))

    def takes(self, first: int, end: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]] | None:
        """Which rows of a range are taken; None if all are."""
        if not self._left_out.range_cardinality(first, end):
            return None
        return np.array([row not in self._left_out for row in range(first, end)])

    def row(self, event: int) -> int | None:
        """The row that an event is; None for one of a log that was given up."""
        return next((low for low, _ in self._moved(event, event + 1)), None)

    def rows(self, events: BitMap64) -> Iterator[tuple[int, int]]:
        """The rows that events are, as ranges."""
        for start, end in runs(events):
            yield from self._moved(start, end)

    def _moved(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        place = max(0, bisect_right(self._pieces, start, key=lambda piece: piece.first) - 1)
        while place < len(self._pieces) and (piece := self._pieces[place]).first < end:
            low, high = max(start, piece.first), min(end, piece.end)
            if low < high:
                yield low + piece.ahead, high + piece.ahead
            place += 1


def begin(file: Path, event: int, row: int, left_out: BitMap64) -> Numbering:
    """Begin with a row. Durable when it returns."""
    pieces = [[start, end] for start, end in runs(left_out - from_range(0, row))]
    write_whole(file, json.dumps({"event": event, "row": row, "left_out": pieces}).encode())
    return Numbering(event, row, left_out)


def go_on(file: Path, event: int, row: int) -> Numbering:
    """The numbering of a reader whose next event and row are these."""
    if not file.exists():  # of a release that left nothing out
        return (
            Numbering(0, row - event, BitMap64()) if row >= event else Numbering(event - row, 0, BitMap64())
        )
    known = json.loads(file.read_bytes())
    left_out = BitMap64.union(BitMap64(), *(from_range(start, end) for start, end in known["left_out"]))
    return Numbering(known["event"], known["row"], left_out)
