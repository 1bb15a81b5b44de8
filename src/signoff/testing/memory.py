"""A source and a sink with nothing behind them, for tests in one process; and all that a source gives.

Both keep their contracts (the conformance suites are asked of them as well), so a test of a sink can be fed
by `MemorySource`, and a test of a source can look at what came into a `MemorySink`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import pyarrow as pa
from pyroaring import BitMap64

from signoff.json_text import json_lines
from signoff.pipeline.model import SinkConfig, SourceConfig
from signoff.pipeline.tests_block import Event
from signoff.sinks.contract import BatchRef, Part, Refusal, Sink, Writer
from signoff.sinks.refusal import fit
from signoff.sources.contract import EndOfSource, Resume, Settlement, Source, SourceContext
from signoff.sources.events import event_batch, piece

_held: dict[str, dict[str, list[bytes]]] = {}
"""By name of a memory sink, the parts of each batch: a sink is pickled, and what it holds must not be."""


class MemorySource(Source):
    """Gives payloads out of a list; remembers what it is told of them."""

    def __init__(self, payloads: Sequence[bytes] = ()) -> None:
        self.payloads = list(payloads)
        """May grow while the source is open."""
        self.acknowledged: BitMap64 = BitMap64()
        self.refused: dict[int, str] = {}
        """Also those that have expired."""
        self._next = 0
        self._logged: BitMap64 = BitMap64()
        self._once = False

    def open(self, context: SourceContext, resume: Resume) -> None:
        self._next, self._once = resume.position or 0, context.once

    def receive(self, max_events: int, timeout_s: float) -> pa.RecordBatch | None:
        taken = self.payloads[self._next : self._next + max_events]
        if not taken and self._once:
            raise EndOfSource
        if not taken:
            return None
        first, self._next = self._next + 1, self._next + len(taken)
        return event_batch(piece(taken, range(first, first + len(taken)), {}))

    def logged(self, first_sequence: int, count: int) -> None:
        self._logged |= BitMap64(range(first_sequence, first_sequence + count))

    def settle(self, settlement: Settlement) -> None:
        answered = {**settlement.refused, **settlement.expired}
        self.acknowledged |= (settlement.acknowledged & self._logged) - BitMap64(self.refused)
        self.refused |= {
            number: reason
            for number, reason in answered.items()
            if number in self._logged and number not in self.acknowledged
        }

    def drained(self) -> bool:
        return not self._logged - self.acknowledged - BitMap64(self.refused)

    def close(self) -> None:
        """It stays as it is, to be looked at."""


class MemorySourceConfig(SourceConfig):
    """Payloads that stand in the config."""

    summary: ClassVar[str] = "Payloads out of memory, for tests."
    type: Literal["memory"] = "memory"
    payloads: tuple[str, ...] = ()
    """The events, as texts."""

    def build(self, base: Path) -> MemorySource:
        return MemorySource([payload.encode() for payload in self.payloads])


class MemorySink(Sink):
    """Keeps rows in the driver's memory, under a name; a batch that comes again takes the place of the first.

    It can be used as a sink of a real run in this process, and sent to executors: they hand their rows back.
    """

    atomic: ClassVar[bool] = True

    def __init__(self, name: str = "memory") -> None:
        self.name = name

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All rows, in the order of batches."""
        batches = _held.get(self.name, {})
        parts = [part for key in sorted(batches) for part in batches[key]]
        return [row for part in parts for row in pa.ipc.open_stream(part).read_all().to_pylist()]

    def clear(self) -> None:
        _held.pop(self.name, None)

    def open(self, part: Part) -> Writer:
        return _MemoryWriter(part.partition)

    def commit(self, batch: BatchRef, parts: Sequence[bytes]) -> None:
        def partition(part: bytes) -> int:
            return int((pa.ipc.open_stream(part).schema.metadata or {})[_PARTITION])

        _held.setdefault(self.name, {})[batch.key] = sorted(parts, key=partition)


class MemorySinkConfig(SinkConfig):
    """Rows in the memory of this process."""

    summary: ClassVar[str] = "Rows in memory, for tests."
    type: Literal["memory"] = "memory"
    name: str = "memory"
    """Under which name they are kept: `MemorySink(name).rows`."""

    def build(self, base: Path) -> MemorySink:
        return MemorySink(self.name)


_PARTITION = b"partition"


class _MemoryWriter(Writer):
    def __init__(self, partition: int) -> None:
        self._partition, self._rows = partition, list[pa.RecordBatch]()

    def write(self, rows: pa.RecordBatch) -> Sequence[Refusal]:
        sorted_out = fit(rows)
        json_lines(sorted_out.rows.slice(0, 1))  # raises for a type that no other sink could write, either
        self._rows.append(sorted_out.rows)
        return sorted_out.refusals

    def close(self) -> bytes | None:
        if not any(rows.num_rows for rows in self._rows):
            return None
        schema = self._rows[0].schema.with_metadata({_PARTITION: str(self._partition)})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            for rows in self._rows:
                writer.write_batch(rows.replace_schema_metadata(schema.metadata))
        return bytes(sink.getvalue())


def received(config: SourceConfig, base: Path) -> list[Event]:
    """All events that a source gives in a run that takes what is there and ends; they are acknowledged.

    For `run_pipeline(pipeline, {"incoming": received(config, base)})`. `base`: the pipeline file's directory.
    """
    source: Source = config.build(base)  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory(prefix="signoff-test-") as state:
        own = Path(state)
        source.open(SourceContext("incoming", own, True, base, state=own), Resume(0))
        try:
            return _all(source)
        finally:
            source.close()


def _all(source: Source) -> list[Event]:
    events: list[Event] = []
    while True:
        try:
            batch = source.receive(1000, 0.1)
        except EndOfSource:
            return events
        if batch is None:
            continue
        source.logged(len(events), len(batch))
        source.settle(Settlement(BitMap64(range(len(events), len(events) + len(batch)))))
        events += [_event(row) for row in batch.to_pylist()]


def _event(row: Mapping[str, Any]) -> Event:
    return Event(
        payload=row["payload"],
        headers=dict(row["headers"] or ()),
        message_id=row["message_id"],
        received_at=row["received_at"],
    )
