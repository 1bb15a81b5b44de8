"""Rows from another pipeline: the reading end of a link.

Each row is an event: its payload is the row as JSON, its message id the id the row has there. What becomes of
the events here is noted in the link, and settles the events of the other pipeline. A refusal here is a
refusal by its sink there. Both may be stopped, killed and started again on their own.

`position` is the number of a row in the link's log. Which event it is here says `signoff.link.numbering`.
"""

from __future__ import annotations

import fcntl
import os
import time
import uuid
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from signoff.durable import make_directory, write_whole
from signoff.errors import SourceError
from signoff.link.notes import LinkNotes, Owner
from signoff.link.numbering import Numbering, begin, go_on
from signoff.log import LogReader
from signoff.log.event_schema import EVENT_SCHEMA
from signoff.pipeline.model import SourceConfig
from signoff.sinks.handed_contexts import TRACEPARENT
from signoff.sources.contract import EndOfSource, Resume, Settlement, Source, SourceContext


class PipelineConfig(SourceConfig):
    """Another pipeline."""

    summary: ClassVar[str] = "Takes the rows of another pipeline, which settles its events with this one."
    example: ClassVar[str] = "path: ./links/alarms"
    type: Literal["pipeline"] = "pipeline"
    path: str
    """Directory of the link, which the sink `pipeline` of the other one names as well."""

    def belongs_to_project(self, base: Path) -> bool:
        return (base / self.path).resolve().is_relative_to(base.resolve())

    def build(self, base: Path) -> Source:
        return PipelineSource((base / self.path).resolve())

    def place_after(self, place: tuple[int | None, int | None]) -> tuple[int | None, int | None]:
        """With the first row without an outcome: discarded events are still in the link, and are read again;
        rows behind it that have one are not."""
        return None, None


class PipelineSource(Source):
    """One link, read by one pipeline."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._log = LogReader(directory / "log")
        self._notes: LinkNotes | None = None
        self._lock = -1
        self._next = 0
        """The next row of the link."""
        self._numbering = Numbering(0, 0, BitMap64())
        self._once = False
        self._answered = 0
        """All rows below are answered."""

    def open(self, context: SourceContext, resume: Resume) -> None:
        make_directory(self._directory)
        self._lock = _lock(self._directory)
        try:
            self._begin(context, resume)
        except BaseException:
            self.close()
            raise

    def _begin(self, context: SourceContext, resume: Resume) -> None:
        self._notes = LinkNotes(self._directory / "link.db")
        self._once = context.once
        known = resume.position is not None
        self._own(context, known)
        file = context.directory / "numbering"
        if resume.position is not None:
            self._next = resume.position + 1
            self._numbering = go_on(file, resume.next_sequence, self._next)
        else:
            self._next = self._first_unanswered()
            self._numbering = begin(file, resume.next_sequence, self._next, self._notes.settled())
        end = self._log.head()
        if known and self._next > end:
            end = self._log.scan()  # after a loss of power the head file may be older than the rows
        if known and self._next > end:
            raise SourceError(
                f"{self._directory}: the link ends at {end}, but rows up to {self._next} were "
                "taken from it; was it removed? Restore it, or discard what is in flight and start with what "
                f"it holds: signoff sources reset FILE {context.name}"
            )
        if known and self._next < self._log.first():
            raise SourceError(
                f"[link-reader] {self._directory}: rows up to {self._log.first()} are settled and gone, but "
                f"this pipeline has taken only those up to {self._next}: {_ANOTHER}"
            )

    def _own(self, context: SourceContext, known: bool) -> None:
        """Become the only reader. Outcomes of rows that were taken elsewhere would be reported with wrong
        numbers here.

        So what was taken before was taken here: the link names this reader, and nobody after it.
        """
        assert self._notes is not None
        file = context.directory / "reader"
        mine = file.read_text().split() if file.exists() else []
        before = self._notes.reader()
        if known and before is None and mine:
            raise SourceError(
                f"[link-reader] {self._directory}: this pipeline has taken rows from a link, but never from "
                "this one, whose numbers are those of other rows: was the link removed, or `path` changed? "
                "Put back what was there; or discard what is in flight and start with what this one holds: "
                f"signoff sources reset FILE {context.name}"
            )
        if known and before is not None and before.token not in mine:
            raise SourceError(
                f"[link-reader] {self._directory}: {before.pipeline} ({before.state}) has read this link "
                f"since: {_ANOTHER}"
            )
        # A new one with each start: a copy of the state directory, or an older backup, does not have it.
        tokens = [uuid.uuid4().hex, *([before.token] if before else [])]
        context.directory.mkdir(parents=True, exist_ok=True)
        write_whole(file, "\n".join(tokens).encode())
        self._notes.set_reader(Owner(tokens[0], f'source "{context.name}"', str(context.directory)))

    def _first_unanswered(self) -> int:
        """Where to begin without a log of our own: an earlier reader may have been there."""
        assert self._notes is not None
        return max(self._log.first(), self._notes.answered_upto())

    def receive(self, max_events: int, timeout_s: float) -> pa.RecordBatch | None:
        end = min(self._log.head(), self._next + max_events)
        if end <= self._next:
            if self._once:
                raise EndOfSource
            time.sleep(timeout_s)
            return None
        first, events = next(self._log.read(self._next, end))
        if first != self._next:
            raise SourceError(
                f"{self._directory}: the link begins at {first}, not at {self._next}: {_ANOTHER}"
            )
        self._next = first + events.num_rows
        return _received(first, events, self._numbering.takes(first, self._next))

    def settle(self, settlement: Settlement) -> None:
        assert self._notes is not None
        # All below is answered. Events of a log that was given up, with other numbers, lie there, too.
        self._answered = max(self._answered, self._notes.answered_upto())
        refused = {
            row: (reason, sequence in settlement.transient or expired)
            for reasons, expired in ((settlement.refused, False), (settlement.expired, True))
            for sequence, reason in reasons.items()
            if (row := self._numbering.row(sequence)) is not None and row >= self._answered
        }
        self._notes.answer(self._moved(settlement.acknowledged) | BitMap64(refused), refused)

    def drained(self) -> bool:
        assert self._notes is not None
        return self._notes.answered_upto() >= self._next

    def close(self) -> None:
        if self._notes is not None:
            self._notes.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _moved(self, sequences: BitMap64) -> BitMap64:
        moved = BitMap64()
        for start, end in self._numbering.rows(sequences):
            if end > self._answered:
                moved.add_range(max(start, self._answered), end)
        return moved


_ANOTHER = (
    "another pipeline, or a copy of this state directory, was its reader. Each needs a link of its own; give "
    "this pipeline another state directory to begin with what is not settled"
)


def _received(
    first: int, events: pa.RecordBatch, taken: np.ndarray[tuple[int], np.dtype[np.bool_]] | None
) -> pa.RecordBatch:
    """Rows of the link as events of this source. `taken`: which of them; None: all."""
    number = events.num_rows
    now = pa.scalar(time.time_ns() // 1000, pa.int64()).cast(EVENT_SCHEMA.field("received_at").type)
    ours = {
        "position": pa.array(np.arange(first, first + number, dtype=np.int64)),
        "received_at": pa.repeat(now, number),
        "headers": _contexts(events.column("headers")),
    }
    arrays = [ours.get(field.name, events.column(field.name)) for field in EVENT_SCHEMA]
    received = pa.RecordBatch.from_arrays(arrays, schema=EVENT_SCHEMA)
    return received if taken is None else received.filter(pa.array(taken))


def _contexts(headers: pa.Array) -> pa.Array:
    """Of the link's own headers only what continues a trace."""
    if headers.null_count == len(headers):
        return headers
    kept = [dict(each or ()).get(TRACEPARENT) for each in headers.to_pylist()]
    return pa.array([[(TRACEPARENT, each)] if each else None for each in kept], headers.type)


def _lock(directory: Path) -> int:
    descriptor = os.open(directory / "reader", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise SourceError(
            f"{directory}: another pipeline reads this link; give each its own, with a sink of its own"
        ) from None
    return descriptor
