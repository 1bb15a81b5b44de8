"""From events as the log keeps them to rows as Spark gets them.

The payload becomes a string where the bytes allow it. One event with other bytes must not fail the
batch it is in: its payload is null and its `error` says why, and it goes the way of dead letters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from signoff.log.segment import encoded_size

Encoding = Literal["utf-8", "binary"]

_UNITE_ROWS = 10_000
_UNITE_BYTES = 4 * 1024**2


def to_rows(first_sequence: int, events: pa.RecordBatch, encoding: Encoding) -> pa.RecordBatch:
    """The events with `_sequence` in front, and the payload in the encoding asked for."""
    columns = {name: events.column(name) for name in events.schema.names}
    if encoding == "utf-8":
        columns["payload"], columns["error"] = _as_text(columns["payload"], columns["error"])
    sequences = pa.array(np.arange(first_sequence, first_sequence + events.num_rows, dtype=np.int64))
    return pa.RecordBatch.from_arrays([sequences, *columns.values()], ["_sequence", *columns])


def without(rows: pa.RecordBatch, sequences: Sequence[int]) -> pa.RecordBatch:
    """The rows but those with these sequence numbers."""
    if not sequences or not rows.num_rows:
        return rows
    wanted = np.isin(rows.column("_sequence").to_numpy(), sequences, invert=True)
    return rows if wanted.all() else rows.filter(pa.array(wanted))


def united(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Small batches put together: a quiet source writes frames of one event each, and each batch
    costs Spark far more than a row does."""
    group: list[pa.RecordBatch] = []
    rows = total = 0
    for batch in batches:
        size = encoded_size(batch)
        if group and (rows + batch.num_rows > _UNITE_ROWS or total + size > _UNITE_BYTES):
            yield _as_one(group)
            group, rows, total = [], 0, 0
        group.append(batch)
        rows, total = rows + batch.num_rows, total + size
    if group:
        yield _as_one(group)


def _as_one(group: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return group[0] if len(group) == 1 else pa.Table.from_batches(group).combine_chunks().to_batches()[0]


def _as_text(payloads: pa.Array, errors: pa.Array) -> tuple[pa.Array, pa.Array]:
    try:
        return payloads.cast(pa.string()), errors  # validates in bulk, shares the bytes
    except pa.ArrowInvalid:
        found = pa.array([_utf8_error(payload) for payload in payloads.to_pylist()], pa.string())
        text = pc.if_else(found.is_null(), payloads, pa.scalar(None, pa.binary()))
        return text.cast(pa.string()), pc.coalesce(errors, found)


def _utf8_error(payload: bytes) -> str | None:
    try:
        payload.decode()
    except UnicodeDecodeError as error:
        return f"payload is not valid UTF-8 (byte 0x{payload[error.start]:02x} at {error.start})"
    return None
