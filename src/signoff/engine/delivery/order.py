"""Keeping the order of rows with the same key at a sink. Runs on executors.

What is written in one call may be taken in any order, and one row of it may be left while others are taken.
So no two rows of a key are in one call, and once a row of a key is left, all later ones of it are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from signoff.json_text import json_objects

Indices = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass
class KeyOrder:
    """The order of one sink's rows in one task."""

    columns: tuple[str, ...]
    _left: set[str] = field(default_factory=set)

    def rounds(self, rows: pa.RecordBatch) -> Iterator[Indices]:
        """Rows that may be written together, in order; those of keys that were left are not among them."""
        keys = self._keys(rows)
        codes = keys.dictionary_encode().indices.to_numpy(zero_copy_only=False)
        turns = _turns(codes)
        for turn in range(int(turns.max(initial=-1)) + 1):
            chosen = np.flatnonzero(turns == turn)
            if self._left:
                mine = keys.take(pa.array(chosen)).to_pylist()
                chosen = chosen[[key not in self._left for key in mine]]
            if len(chosen):
                yield chosen

    def leave(self, rows: pa.RecordBatch, indices: Sequence[int]) -> None:
        """These were not taken: nothing behind them with the same keys is written."""
        self._left.update(self._keys(rows).take(pa.array(indices, pa.int64())).to_pylist())

    def left(self, rows: pa.RecordBatch) -> Indices:
        """The rows whose keys were left."""
        return np.flatnonzero([key in self._left for key in self._keys(rows).to_pylist()])

    def _keys(self, rows: pa.RecordBatch) -> pa.Array:
        return json_objects(rows.select(list(self.columns)))


def _turns(codes: np.ndarray[tuple[int], np.dtype[np.int32]]) -> Indices:
    """For each row, how many rows of its key come before it."""
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    is_first = np.ones(len(codes), bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    begins = np.flatnonzero(is_first)
    places = np.arange(len(codes)) - np.repeat(begins, np.diff(np.append(begins, len(codes))))
    turns = np.empty(len(codes), np.int64)
    turns[order] = places
    return turns
