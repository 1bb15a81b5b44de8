"""The writing side of a link: a sink that writes whole batches into a log.

Tasks write their rows into files of their own (`parts`), as events: the payload is the row as JSON, the
message id is the row's id, and `position` says which event of the batch it was made from. The driver, which
alone writes the log, appends the parts of a batch together; a batch is in the log whole or not at all.

A kill between any two steps leads to the same batch being handed on again: it is recognised by its note.
A commit that fails leaves nothing behind, in the log or in memory: whoever is told so may give the rows up.
Where the file cannot be cut back to what it held before, the note says that the rows are withdrawn. If that
cannot be written either, no failure is reported: the batch is done again, as after a kill.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from signoff.errors import Discarded, LogError, LogFull, StateError, TransientError
from signoff.json_text import json_objects
from signoff.ledger.outcome import OTHERS
from signoff.ledger.sequences import from_numpy
from signoff.link.notes import Handed, LinkNotes
from signoff.log import LogReader, LogWriter
from signoff.log.event_schema import EVENT_SCHEMA
from signoff.pipeline.model import LogSettings, SinkConfig
from signoff.private import make_private, opener
from signoff.sinks.contract import BatchRef, Part, Refusal, Sink, Writer
from signoff.sinks.handed_contexts import TRACEPARENT, handed_contexts
from signoff.sinks.refusal import fit

WhenFull = Literal["block", "drop_newest"]
Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(frozen=True)
class LinkPlace:
    """Where a link is kept."""

    log: Path
    notes: Path
    """Directory of `link.db` and of the parts."""

    @property
    def database(self) -> Path:
        return self.notes / "link.db"

    @property
    def parts(self) -> Path:
        return self.notes / "parts"


class HandoverConfig(SinkConfig):
    """The sink at a place where the graph was cut. Made by the engine, never written by users."""

    type: Literal["handover"] = "handover"
    place: LinkPlace
    sink: str
    """The sink's name, for the notes."""
    max_bytes: int
    when_full: WhenFull
    awaited_by: frozenset[str]
    """Sources whose events wait until their rows are settled behind the link."""
    outside: bool = False
    """Somebody else reads the link, and answers: another pipeline, or the invoker of this one."""
    by_invoker: bool = False
    """It is the invoker: it answers when runs have ended, however long that takes."""

    def build(self, base: Path) -> HandoverSink:
        return HandoverSink(self.sink, self.place, self.max_bytes, self.when_full)


class HandoverSink(Sink):
    """Appends the rows of a batch to the log of a link."""

    atomic: ClassVar[bool] = True
    wants_origins: ClassVar[bool] = True

    def __init__(self, name: str, place: LinkPlace, max_bytes: int, when_full: WhenFull) -> None:
        self._name, self._place = name, place
        self._settings, self._when_full = LogSettings(max_bytes=max_bytes), when_full
        self._forget()

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._log: LogWriter | None = None
        self._notes: LinkNotes | None = None
        self._latest = 0
        self._noted: Handed | None = None
        """A batch that could not be appended after it was noted. The next one takes its place."""
        self._uncut = False
        """Its rows may be in the file, where a kill would let them be found."""
        self._unsaid = False
        """And its note does not say that they are withdrawn: no error means that they will not be found."""

    kept: ClassVar[tuple[str, ...]] = ("_name", "_place", "_settings", "_when_full")
    """What goes to executors."""

    def __getstate__(self) -> Mapping[str, Any]:
        return {name: getattr(self, name) for name in self.kept}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def prepare(self) -> None:
        with self._lock:
            try:
                make_private(self._place.parts)
                self._open()
                for left in self._place.parts.iterdir():  # of an earlier run, whose batches are done again
                    left.unlink(missing_ok=True)
            except (LogError, StateError, OSError) as error:
                raise TransientError(str(error)) from error

    def release(self) -> None:
        with self._lock:
            if self._log is not None:
                with suppress(LogError):
                    self._log.close()
            if self._notes is not None:
                self._notes.close()
            self._log = self._notes = self._noted = None
            self._uncut = self._unsaid = False

    def open(self, part: Part) -> Writer:
        return PartWriter(self._place.parts, part)

    def commit(self, batch: BatchRef, parts: Sequence[bytes]) -> None:
        with self._lock:
            try:
                self._append(batch, _united([self._place.parts / part.decode() for part in parts]))
            except LogFull as error:
                if self._when_full == "drop_newest" and "[log-full]" in str(error):
                    raise Discarded(f"the buffer is full ({self._settings.max_bytes} bytes)") from error
                raise TransientError(str(error)) from error
            except (LogError, StateError, OSError) as error:
                if self._unsaid:
                    raise
                raise TransientError(str(error)) from error
            finally:
                # Also those of tries that came to nothing: each writes its own.
                for part in self._place.parts.glob(f"{batch.key}.*"):
                    part.unlink(missing_ok=True)

    def append_sign(self, message_id: str, payload: bytes) -> None:
        """Append an event that is no row. Raises LogError, StateError or OSError."""
        origin = pa.nulls(1, pa.int64())
        sign = as_events(pa.array([payload], pa.binary()), pa.array([message_id]), origin)
        with self._lock:
            log, notes = self._open()
            self._cut(log, notes)
            if self._noted is not None:  # its rows are not in the log, and the sign must not be taken for one
                notes.forget(self._noted)
                self._noted = None
            try:
                _append_now(log, [sign])
            except LogError:
                self._uncut = not log.withdraw()
                raise

    def _append(self, batch: BatchRef, events: pa.Table) -> None:
        log, notes = self._open()
        for known in self._earlier(notes, batch):
            if known.last <= log.durable_sequence:
                others = self._without(known, events)
                if known.sink != self._name and others.num_rows < events.num_rows:
                    notes.rename(known, self._name)
                events = others
        if not events.num_rows:
            return
        events = self._received_now(events)
        self._cut(log, notes)  # while the note of what is cut off is there
        log.append_all([])  # whether there is room, before anything is noted
        first = log.next_sequence
        pieces = events.to_batches()
        origins = from_numpy(np.concatenate([origins_of(piece)[1] for piece in pieces]))
        last = first + events.num_rows
        self._noted = Handed(self._name, batch, first, last, origins, self._made_from(batch))
        notes.note(self._noted)
        try:
            _append_now(log, pieces)
        except LogError:
            self._withdraw(log, notes)
            raise
        self._noted = None

    def _withdraw(self, log: LogWriter, notes: LinkNotes) -> None:
        """Whoever is told that a commit failed may give its rows up: they must not come back after a kill."""
        self._uncut = not log.withdraw()
        self._unsaid = self._uncut and self._noted is not None
        if self._unsaid and self._noted is not None:
            notes.withdraw(self._noted)
            self._unsaid = False

    def _cut(self, log: LogWriter, notes: LinkNotes) -> None:
        """Cut off what a commit that failed has left in the file. What is noted or appended before that could
        be taken for it."""
        if self._uncut:
            self._withdraw(log, notes)
        if self._uncut:
            raise LogError(
                f"[log-io] {self._place.log}: rows of a commit that failed cannot be cut off; check the disk"
            )

    def _earlier(self, notes: LinkNotes, batch: BatchRef) -> list[Handed]:
        """Where rows of a batch may be that come now: if a kill comes before the ledger knows of them, and a
        step then fails for them for a while, they come again on their own."""
        return notes.find_range(batch)

    def _made_from(self, batch: BatchRef) -> str:
        """What must be known of a batch if it is replayed, besides its rows."""
        return ""

    def _received_now(self, events: pa.Table) -> pa.Table:
        """The rows, received as they are appended: in the order of the log time never goes backwards."""
        self._latest = max(self._latest, time.time_ns() // 1000)
        place = events.schema.get_field_index("received_at")
        kind = events.schema.field(place)
        now = pa.repeat(pa.scalar(self._latest, pa.int64()).cast(kind.type), events.num_rows)
        return events.set_column(place, kind, now)

    def _without(self, known: Handed, events: pa.Table) -> pa.Table:
        """The rows that are not in the log already: a replayed batch may have others."""
        found = LogReader(self._place.log).read(known.first, known.last, ["message_id"])
        there = pa.chunked_array([there.column("message_id") for _, there in found], pa.string())
        return events.filter(pc.invert(pc.is_in(events.column("message_id"), there.combine_chunks())))

    def _open(self) -> tuple[LogWriter, LinkNotes]:
        if self._log is None or self._notes is None:
            notes = self._notes or LinkNotes(self._place.database)
            self._notes = notes
            last = notes.last()
            half = last is not None and LogReader(self._place.log).scan() < last.last
            keep = last.first if half and last is not None else None
            self._log = LogWriter(self._place.log, self._settings, keep_upto=keep)
            if half and last is not None:
                notes.forget(last)  # what is appended next is no part of it, and must not be taken for it
        return self._log, self._notes


def _append_now(log: LogWriter, pieces: Sequence[pa.RecordBatch]) -> None:
    """Append durably; raises LogError if that fails, after which they are to be withdrawn."""
    log.append_all(pieces)
    log.sync()


class PartWriter(Writer):
    """One task's rows, in a file that is durable when it is closed."""

    def __init__(self, directory: Path, part: Part) -> None:
        # A receipt of an earlier run, which counted attempts from 0 as well, must not find another's rows.
        self._name = f"{part.batch.key}.{part.partition}.{part.attempt}-{token_hex(8)}"
        self._path = directory / self._name
        self._contexts = part.contexts
        self._file: Any = None
        self._stream: Any = None

    def write(self, rows: pa.RecordBatch) -> Sequence[Refusal]:
        sorted_out = fit(rows)
        if sorted_out.rows.num_rows:
            try:
                self._begin().write_batch(self._events(sorted_out.rows))
            except OSError as error:
                raise TransientError(f"{self._path}: {error.strerror}") from error
        return sorted_out.refusals

    def close(self) -> bytes | None:
        if self._stream is None:
            return None
        try:
            self._stream.close()
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
        except OSError as error:
            raise TransientError(f"{self._path}: {error.strerror}") from error
        return self._name.encode()

    def abort(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._path.unlink(missing_ok=True)

    def _events(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows as events of the link's log."""
        last = rows.num_columns - 1
        # By place: the rows may have columns of their own that are called like those of the engine.
        payloads = self._payloads(rows.select(list(range(1, last))))
        handed = handed_contexts(self._contexts, rows.column(0))
        return as_events(payloads, rows.column(0), rows.column(last), handed)

    def _payloads(self, columns: pa.RecordBatch) -> pa.Array:
        return json_objects(columns).cast(pa.large_binary()).cast(pa.binary())

    def _begin(self) -> Any:
        if self._stream is None:
            make_private(self._path.parent, durable=False)
            self._file = open(self._path, "wb", opener=opener)  # noqa: SIM115
            self._stream = pa.ipc.new_stream(self._file, EVENT_SCHEMA)
        return self._stream


def as_events(
    payloads: pa.Array, ids: pa.Array, origins: pa.Array, contexts: Sequence[str | None] = ()
) -> pa.RecordBatch:
    """Events of the link's log, of rows whose JSON, ids and origins these are. `contexts`: what they hand on
    of traces; empty where none does."""
    number = len(payloads)
    now = pa.scalar(time.time_ns() // 1000, pa.int64()).cast(pa.timestamp("us", "UTC"))
    first, headers = _with_others(origins)
    if contexts:
        headers = _with_contexts(headers, contexts)
    return pa.RecordBatch.from_arrays(
        [
            payloads,
            headers,
            ids.cast(pa.string()),
            pa.repeat(now, number),
            pa.nulls(number, pa.int64()),
            first,
            pa.nulls(number, pa.string()),
        ],
        schema=EVENT_SCHEMA,
    )


def _with_others(origins: pa.Array) -> tuple[pa.Array, pa.Array]:
    """The first origin of each row, and headers that name the further ones."""
    kind = EVENT_SCHEMA.field("headers").type
    if not pa.types.is_list(origins.type):
        return origins, pa.nulls(len(origins), kind)
    every = origins.to_pylist()
    further = [[(OTHERS, ",".join(map(str, each[1:])))] if len(each) > 1 else None for each in every]
    return pa.array([each[0] for each in every], pa.int64()), pa.array(further, kind)


def _with_contexts(headers: pa.Array, contexts: Sequence[str | None]) -> pa.Array:
    known = headers.to_pylist()
    further = [[(TRACEPARENT, context)] if context else [] for context in contexts]
    both = [(mine or []) + more or None for mine, more in zip(known, further, strict=True)]
    return pa.array(both, headers.type)


def origins_of(events: pa.RecordBatch) -> tuple[Numbers, Numbers]:
    """The events that rows of a link were made from: for each of them the row's place, and its number."""
    first, headers = events.column("position").to_numpy(), events.column("headers")
    places = np.arange(len(first))
    if headers.null_count == len(headers):
        return places, first
    more = [
        (place, int(number))
        for place in np.flatnonzero(headers.is_valid()).tolist()
        for number in dict(headers[place].as_py()).get(OTHERS, "").split(",")
        if number
    ]
    further = np.array(more, dtype=np.int64).reshape(-1, 2)
    return np.concatenate([places, further[:, 0]]), np.concatenate([first, further[:, 1]])


def _united(parts: Sequence[Path]) -> pa.Table:
    """The rows of all tasks, in the order of the events they were made from."""
    tables = []
    for part in sorted(parts, key=lambda path: int(path.name.split(".")[-2])):
        with part.open("rb") as file:
            tables.append(pa.ipc.open_stream(file).read_all())
    table = pa.concat_tables(tables) if tables else EVENT_SCHEMA.empty_table()
    origins = table.column("position").to_numpy()
    if (np.diff(origins) < 0).any():  # a plan that shuffles, or one of several frames
        table = table.take(pa.array(np.argsort(origins, kind="stable")))
    return table
