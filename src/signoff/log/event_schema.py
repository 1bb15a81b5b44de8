"""One event as the log keeps it: the columns that every source gives."""

from __future__ import annotations

import pyarrow as pa

EVENT_SCHEMA = pa.schema(
    [
        pa.field("payload", pa.binary(), nullable=False),
        pa.field("headers", pa.map_(pa.string(), pa.string())),
        pa.field("message_id", pa.string()),
        pa.field("received_at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("unit", pa.int64()),
        pa.field("position", pa.int64()),
        pa.field("error", pa.string()),
    ]
)
"""One event as the log keeps it; its sequence number is its place in the log.

`unit` and `position` belong to the source: a file's number and a byte offset, a request's number.
`error` is set by a source that knows already that the event is bad (too large, unreadable line):
such an event is a dead letter with this reason and reaches no transform.
"""
