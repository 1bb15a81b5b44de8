"""Finding the rows a sink cannot take, so that a bad row costs its neighbours nothing.

`fit` sorts out what no sink can write, before anything is written. `isolate` finds the culprits
when the other side rejects several rows with one answer: it asks again with halves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from signoff.pipeline.masking import brief as brief
from signoff.sinks.contract import Refusal

# The years 1 to 9999: what Spark SQL documents, ISO 8601 can write and Python can read.
_MICROS = (-62_135_596_800_000_000, 253_402_300_799_999_999)
_DAYS = (-719_162, 2_932_896)


class RowsRejected(Exception):
    """The other side says that at least one of the rows it was just given can never be taken."""


@dataclass(frozen=True, slots=True)
class Fit:
    """The rows that can be written, and those that cannot."""

    rows: pa.RecordBatch
    places: np.ndarray[tuple[int], np.dtype[np.int64]]
    """For each of `rows`, its index in the batch `fit` was given."""
    refusals: list[Refusal]

    def original(self, refusals: Iterable[Refusal]) -> list[Refusal]:
        """All refusals, those of `rows` with the index they have in the original batch."""
        moved = [Refusal(int(self.places[one.index]), one.reason, one.transient) for one in refusals]
        return sorted([*self.refusals, *moved], key=lambda one: one.index)

    def without(self, reasons: Mapping[int, str]) -> Fit:
        """Less some of `rows`, by their index, which turned out to be ones that cannot be written."""
        if not reasons:
            return self
        refusals = self.original(refused(index, reason) for index, reason in reasons.items())
        keep = [index for index in range(self.rows.num_rows) if index not in reasons]
        return Fit(self.rows.take(pa.array(keep, pa.int64())), self.places[keep], refusals)


def fit(rows: pa.RecordBatch) -> Fit:
    """Refuse rows with text that is not UTF-8 or a time outside the years 1 to 9999."""
    reasons: dict[int, str] = {}
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        for index, reason in _unfit(column):
            reasons.setdefault(index, f'column "{name}": {reason}')
    refusals = [refused(index, reason) for index, reason in sorted(reasons.items())]
    places = np.arange(rows.num_rows, dtype=np.int64)
    if refusals:
        places = np.delete(places, list(reasons))
        rows = rows.take(pa.array(places))
    return Fit(rows, places, refusals)


def fitted(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with null in the place of every value that no sink can write."""
    for place, name in enumerate(rows.schema.names):
        column = rows.column(place)
        if wrong := [index for index, _ in _unfit(column)]:
            mask = np.zeros(rows.num_rows, dtype=bool)
            mask[wrong] = True
            nulls = pa.nulls(rows.num_rows, column.type)
            rows = rows.set_column(place, name, pc.if_else(pa.array(mask), nulls, column))
    return rows


def refused(index: int, reason: str) -> Refusal:
    """A refusal for good whose reason is short, on one line and free of secrets."""
    return Refusal(index, brief(reason), transient=False)


def isolate(start: int, end: int, write: Callable[[int, int], None]) -> list[Refusal]:
    """Write the rows from `start` to `end`, and refuse exactly those that are rejected on their own.

    `write(start, end)` takes all of them or, raising RowsRejected, none. With k culprits among n
    rows it is called about 2·k·log2(n/k) times.
    """
    try:
        write(start, end)
    except RowsRejected as rejected:
        if end - start == 1:
            return [refused(start, str(rejected))]
    else:
        return []
    middle = (start + end) // 2
    return isolate(start, middle, write) + isolate(middle, end, write)


def _unfit(column: pa.Array) -> Iterable[tuple[int, str]]:
    kind = column.type
    if pt.is_timestamp(kind) or pt.is_date(kind):
        return [(index, "the time is outside the years 1 to 9999") for index in _out_of_range(column)]
    if pt.is_string(kind) or pt.is_large_string(kind):
        return [] if _valid(column) else _unreadable(column)
    if pt.is_nested(kind) and not (_valid(column) and _times_in_range(column)):
        return _unreadable(column)
    return []


def _valid(column: pa.Array) -> bool:
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _out_of_range(column: pa.Array) -> list[int]:
    if pt.is_date(column.type):
        low, high = _DAYS
        numbers = column.cast(pa.date32()).view(pa.int32())
    else:
        low, high = _MICROS
        numbers = column.cast(pa.timestamp("us", column.type.tz), safe=False).view(pa.int64())
    extremes = pc.min_max(numbers)
    least, most = extremes["min"].as_py(), extremes["max"].as_py()
    if least is None or (least >= low and most <= high):
        return []
    outside = pc.or_(pc.less(numbers, low), pc.greater(numbers, high)).fill_null(False)
    places: list[int] = np.flatnonzero(outside.to_numpy(zero_copy_only=False)).tolist()
    return places


def _times_in_range(column: pa.Array) -> bool:
    kind = column.type
    if pt.is_timestamp(kind) or pt.is_date(kind):
        return not _out_of_range(column)
    if pt.is_struct(kind):
        return all(_times_in_range(child) for child in column.flatten())
    if pt.is_map(kind):
        return _times_in_range(column.keys) and _times_in_range(column.items)
    if pt.is_nested(kind):
        return _times_in_range(column.flatten())
    return True


def _unreadable(column: pa.Array) -> Iterable[tuple[int, str]]:
    """Row by row, only for a column that is known to hold a bad value."""
    for index, value in enumerate(column):
        try:
            value.as_py()
        except UnicodeDecodeError as error:
            byte = error.object[error.start]
            yield index, f"the text is not valid UTF-8 (byte 0x{byte:02x} at {error.start})"
        except (ValueError, OverflowError):
            yield index, "the time is outside the years 1 to 9999"
