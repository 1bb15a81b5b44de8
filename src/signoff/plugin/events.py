"""Payloads of a source as a record batch of EVENT_SCHEMA."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from signoff.sources import events


def event_batch(
    payloads: Sequence[bytes],
    positions: Sequence[int],
    *,
    unit: int | None = None,
    headers: Mapping[str, str] | Sequence[Mapping[str, str]] | None = None,
    message_ids: Sequence[str | None] | None = None,
    errors: Mapping[int, str] | None = None,
) -> pa.RecordBatch:
    """What `Source.receive` returns: events received now, in order.

    `positions`: where the source stands *after* each event; `unit`: in which file, partition or whatever else
    it is a position. Both of the last durable event come back in `Resume` after a restart, so together they
    must never go backwards. `headers`: one mapping for all, or one for each. `errors`: events that are known
    to be bad (index to reason): they become dead letters with that reason, and reach no transform.
    """
    piece = events.piece(payloads, positions, errors or {})
    return events.event_batch(piece, unit=unit, headers=headers, message_ids=message_ids)
