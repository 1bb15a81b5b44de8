"""Events, and what a log says of them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from signoff.log import LogReader, LogWriter
from signoff.log.event_schema import EVENT_SCHEMA
from signoff.pipeline.model import LogSettings

RECEIVED_AT = datetime(2021, 5, 1, 10, 0, tzinfo=UTC)


def small_settings(**changes: Any) -> LogSettings:
    return LogSettings(**{"max_bytes": 8 * 1024**2, "segment_bytes": 64 * 1024, "sync_ms": 5, **changes})


def batch(payloads: list[bytes], first: int = 0, unit: int | None = 1) -> pa.RecordBatch:
    """Events with these payloads; their position is their number from `first` on."""
    count = len(payloads)
    columns = [
        payloads,
        [[("n", str(first + index))] for index in range(count)],
        [f"m{first + index}" for index in range(count)],
        [RECEIVED_AT] * count,
        [unit] * count,
        list(range(first, first + count)),
        [None] * count,
    ]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, EVENT_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=EVENT_SCHEMA)


def numbered(first: int, count: int, size: int = 0) -> pa.RecordBatch:
    """Events whose payload is their sequence number."""
    return batch([payload(number, size) for number in range(first, first + count)], first)


def payload(number: int, size: int = 0) -> bytes:
    return str(number).encode().ljust(size, b".")


def write(directory: Path, count: int, settings: LogSettings | None = None, group: int = 500) -> None:
    """A log of numbered events, synced by groups."""
    writer = LogWriter(directory, settings or small_settings())
    begin = writer.next_sequence
    for first in range(begin, begin + count, group):
        writer.append(numbered(first, min(group, begin + count - first)))
        writer.sync()
    writer.close()


def payloads(directory: Path, start: int, end: int) -> list[bytes]:
    return [
        value
        for _, events in LogReader(directory).read(start, end, ["payload"])
        for value in events.column(0).to_pylist()
    ]


def segments(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.log"))
