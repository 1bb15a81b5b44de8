"""An entry of a stream: how the server says it, and the event it becomes.

Fields and values may be any bytes; what is not text is replaced where text is needed. Ids go up to 2^64 - 1
in either part, beyond what the log's numbers hold: they are kept in their 64 bits, whatever the sign then is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from signoff.sources.events import KEPT_BYTES, event_batch, piece, too_large

PREFIX = "redis."

Key = tuple[int, int, int]
"""An entry: both parts of its id, and a hash of its payload. A stream that was deleted may get ids again that
it had, where whoever writes chooses them."""


@dataclass(frozen=True, slots=True)
class Entry:
    id: bytes
    fields: Sequence[bytes] | None
    """Names and values in turn; None for an entry that was deleted while it was pending."""


@dataclass(frozen=True, slots=True)
class Read:
    """What becomes of an entry in the log."""

    key: Key
    id: bytes
    payload: bytes
    error: str | None
    headers: Mapping[str, str]
    message_id: str | None


def entries_of(answer: Any) -> list[Entry]:
    """Of a list of entries as the server gives it."""
    return [Entry(each[0], each[1]) for each in answer or () if each is not None]


def read(entry: Entry, stream: str, field: str | None, id_field: str | None, limit: int) -> Read:
    names = entry.fields or ()
    pairs = list(zip(map(_text, names[::2]), names[1::2], strict=False))
    values = dict(pairs)
    payload, error = values.get(field) if field is not None else None, None
    if payload is None:
        if field is not None:
            error = f'the entry has no field "{field}"'
        payload = orjson.dumps({name: _text(value) for name, value in pairs})
    if len(payload) > limit:
        error = too_large(len(payload), limit)
        payload = payload[:KEPT_BYTES]
    headers = {f"{PREFIX}stream": stream, f"{PREFIX}id": _text(entry.id)}
    if field is not None:
        others = {name: value for name, value in pairs if name != field and not name.startswith(PREFIX)}
        headers |= {name: _text(value) for name, value in others.items()}
    message_id = values.get(id_field) if id_field is not None else None
    return Read(
        key(*numbers(entry.id), payload), entry.id, payload, error, headers,
        None if message_id is None else _text(message_id),
    )  # fmt: skip


def numbers(id_: bytes) -> tuple[int, int]:
    milliseconds, _, place = id_.partition(b"-")
    return _signed(int(milliseconds)), _signed(int(place or 0))


def id_of(milliseconds: int, place: int) -> bytes:
    return b"%d-%d" % (milliseconds % 2**64, place % 2**64)


def key(milliseconds: int, place: int, payload: bytes) -> Key:
    return milliseconds, place, hash(payload)


def events_of(entries: Sequence[Read]) -> pa.RecordBatch:
    errors = {index: each.error for index, each in enumerate(entries) if each.error is not None}
    return event_batch(
        piece([each.payload for each in entries], [each.key[1] for each in entries], errors),
        unit=np.array([each.key[0] for each in entries], dtype=np.int64),
        headers=[each.headers for each in entries],
        message_ids=[each.message_id for each in entries],
    )


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number


def _text(part: bytes) -> str:
    return part.decode(errors="replace")
