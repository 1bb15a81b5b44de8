"""From what a source read to a record batch of EVENT_SCHEMA, column by column.

A `Piece` is what all line- and row-reading sources produce: payloads, the position after each, and
the few errors by index. Nothing here is done once per event: at 400,000 events a second on one core
a Python statement per event is already too much.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from signoff.log.event_schema import EVENT_SCHEMA

KEPT_BYTES = 64 * 1024
"""How much is kept of a payload that is larger than `max_event_bytes`."""

Offsets = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Piece:
    """Some events in a row, before they have headers and a time."""

    payload: pa.Array
    positions: Offsets
    """Where the source stands after each event."""
    errors: Mapping[int, str] = field(default_factory=dict)
    """Events that are known to be bad already: index to reason."""

    def __len__(self) -> int:
        return len(self.payload)


def piece(payloads: Sequence[bytes], positions: Sequence[int], errors: Mapping[int, str]) -> Piece:
    """A piece of payloads that exist one by one."""
    return Piece(pa.array(payloads, pa.binary()), np.asarray(positions, dtype=np.int64), errors)


def event_batch(
    piece: Piece,
    *,
    unit: int | Offsets | None = None,
    headers: pa.Array | Mapping[str, str] | Sequence[Mapping[str, str]] | None = None,
    message_ids: Sequence[str | None] | None = None,
) -> pa.RecordBatch:
    """The piece as events received now; the log sees to it that time never goes backwards.

    `headers` is one mapping for all events, one for each, or the column itself.
    """
    count = len(piece)
    now = pa.scalar(time.time_ns() // 1000, pa.int64()).cast(EVENT_SCHEMA.field("received_at").type)
    columns = [
        piece.payload,
        _headers(headers, count),
        pa.nulls(count, pa.string()) if message_ids is None else pa.array(message_ids, pa.string()),
        pa.repeat(now, count),
        _units(unit, count),
        pa.array(piece.positions),
        _errors(piece.errors, count),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=EVENT_SCHEMA)


def too_large(size: int, limit: int, what: str = "event") -> str:
    """The reason of a payload of which only the beginning is kept."""
    return f"{what} of {size} bytes is larger than max_event_bytes ({limit}); only the beginning is kept"


def _units(unit: int | Offsets | None, count: int) -> pa.Array:
    if unit is None:
        return pa.nulls(count, pa.int64())
    return pa.repeat(pa.scalar(unit, pa.int64()), count) if isinstance(unit, int) else pa.array(unit)


def _headers(
    headers: pa.Array | Mapping[str, str] | Sequence[Mapping[str, str]] | None, count: int
) -> pa.Array:
    kind = EVENT_SCHEMA.field("headers").type
    if headers is None:
        return pa.nulls(count, kind)
    if isinstance(headers, pa.Array):
        return headers
    if not isinstance(headers, Mapping):
        return pa.array([list(one.items()) for one in headers], kind)
    keys, values = pa.array(headers.keys(), pa.string()), pa.array(headers.values(), pa.string())
    if len(headers) == 1:
        keys, values = pa.repeat(keys[0], count), pa.repeat(values[0], count)
    else:
        index = np.tile(np.arange(len(headers)), count)
        keys, values = keys.take(index), values.take(index)
    offsets = pa.array(np.arange(count + 1, dtype=np.int32) * len(headers))
    return pa.MapArray.from_arrays(offsets, keys, values)


def _errors(errors: Mapping[int, str], count: int) -> pa.Array:
    if not errors:
        return pa.nulls(count, pa.string())
    column: list[str | None] = [None] * count
    for index, reason in errors.items():
        column[index] = reason
    return pa.array(column, pa.string())
