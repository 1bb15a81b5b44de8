"""The logs of a test: events are written into them as an intake would, with the times the test gives."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa

from signoff.log.event_schema import EVENT_SCHEMA
from signoff.log.writer import LogWriter
from signoff.pipeline.graph import Graph
from signoff.pipeline.model import SourceConfig
from signoff.pipeline.tests_block import Event
from signoff.testing.replaced_nodes import ROWS


class Logs:
    """The logs of all sources of a pipeline."""

    def __init__(self, graph: Graph) -> None:
        self._writers: dict[str, LogWriter] = {}
        for name, node in graph.sources.items():
            assert isinstance(node.config, SourceConfig)
            self._writers[name] = LogWriter(graph.state / "log" / name, node.config.log)

    def append(self, events: Mapping[str, Sequence[Event]], now: datetime) -> None:
        """Give each node its events, received now unless they say when."""
        for name, given in events.items():
            writer = self._writers.get(name + ROWS) or self._writers[name]
            if given:
                writer.append(_batch(given, writer.next_sequence, now))
                writer.sync()

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()


def _batch(events: Sequence[Event], first: int, now: datetime) -> pa.RecordBatch:
    count = len(events)
    columns = {
        "payload": [payload_of(event.payload) for event in events],
        "headers": [list(event.headers.items()) for event in events],
        "message_id": [event.message_id for event in events],
        "received_at": [event.received_at or now for event in events],
        "unit": [0] * count,
        "position": list(range(first + 1, first + count + 1)),
        "error": [None] * count,
    }
    arrays = [pa.array(columns[field.name], field.type) for field in EVENT_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=EVENT_SCHEMA)


def payload_of(value: Any) -> bytes:
    """A payload as a source would bring it."""
    if isinstance(value, bytes):
        return value
    return (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)).encode()
