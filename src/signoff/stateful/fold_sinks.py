"""The two ends of a fold's query: what hands events to it, and what takes its results.

Both are links as any other, but for two things. The one in front also brings *ticks*, events that are no
rows: Spark looks at its timers only when a batch comes, and where no more events come, a tick makes one. So
a fold that waits costs nothing. The one behind takes results whose JSON is written already.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from signoff.errors import LogError, StateError, TransientError
from signoff.link.handover import HandoverConfig, HandoverSink, PartWriter, as_events
from signoff.sinks.contract import EVENT_ID, ORIGIN, Part, Refusal, Writer
from signoff.stateful.window_sinks import MARK_ID

PAYLOAD = "payload"


class FoldIntakeConfig(HandoverConfig):
    """Where a pipeline is cut in front of a fold. Made by the engine, never written by users."""

    def build(self, base: Path) -> FoldIntake:
        return FoldIntake(self.sink, self.place, self.max_bytes, self.when_full)


class FoldIntake(HandoverSink):
    """Hands events on, and ticks."""

    def tick(self) -> None:
        """Have Spark do a batch. Tried again later if it does not work."""
        try:
            self.append_sign(f"{MARK_ID}{time.time_ns() // 1000}", b"{}")
        except (LogError, StateError, OSError):
            return


class FoldResultsConfig(HandoverConfig):
    """Where a pipeline is cut behind a fold. Made by the engine, never written by users."""

    def build(self, base: Path) -> FoldResults:
        return FoldResults(self.sink, self.place, self.max_bytes, self.when_full)


class FoldResults(HandoverSink):
    """Takes rows of three columns: the id, the numbers of the events that went in, and the JSON."""

    def open(self, part: Part) -> Writer:
        return _ResultWriter(self._place.parts, part)


class _ResultWriter(PartWriter):
    def write(self, rows: pa.RecordBatch) -> Sequence[Refusal]:
        payloads = rows.column(PAYLOAD).cast(pa.binary())
        try:
            self._begin().write_batch(as_events(payloads, rows.column(EVENT_ID), rows.column(ORIGIN)))
        except OSError as error:
            raise TransientError(f"{self._path}: {error.strerror}") from error
        return []
