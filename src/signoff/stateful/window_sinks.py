"""The sinks in front of a window: one hands partial rows on to Spark's state, one counts what was late.

Both are atomic: a batch counts when the driver commits it, and what is committed again is recognised.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from signoff.errors import LogError, StateError, TransientError
from signoff.json_text import json_objects
from signoff.ledger.sequences import from_bytes, from_numpy, to_bytes
from signoff.link.handover import HandoverConfig, HandoverSink, LinkPlace, PartWriter
from signoff.link.notes import Handed, LinkNotes
from signoff.pipeline.model import SinkConfig
from signoff.sinks.contract import EVENT_ID, ORIGIN, BatchRef, Part, Refusal, Sink, Writer
from signoff.sinks.refusal import fit
from signoff.stateful.watermarks import Seen, Watermarks
from signoff.transforms.window.bounds import Moments, Numbers, Panes
from signoff.transforms.window.partial import CLOSED, START, TIME, Measure, Partials
from signoff.transforms.window.partial import ORIGIN as FIRST
from signoff.transforms.window.watermark_rule import WatermarkRule

MARK_ID = "~mark/"
"""Begins the id of an event of the link that is no row, but says how far time has come; no source can be
called so."""
STATE, LATENESS, RESULTS = ".state", ".lateness", ".results"
"""End the names of what the engine puts around a window."""


class WindowIntakeConfig(HandoverConfig):
    """Where a pipeline is cut in front of a window. Made by the engine, never written by users."""

    panes: Panes | Moments
    keys: tuple[str, ...]
    measures: tuple[Measure, ...] = ()
    """The aggregates that can be put together from partial ones; known when the part in front is compiled."""
    combines: bool
    """The events of a task are put together; else each is handed on for itself, in each of its windows: where
    a batch that is done again may have other events, or not all aggregates are such."""
    with_origins: bool
    """Events wait for the results, so that all of them must be known."""
    progress: WatermarkRule
    sources: frozenset[str]

    def build(self, base: Path) -> WindowIntake:
        return WindowIntake(self)


@dataclass(frozen=True)
class Given:
    """What a window was given of a batch. Partial rows do not tell."""

    combined: bool
    rows: int
    events: BitMap64

    @classmethod
    def together(cls, combined: bool, said: Sequence[Mapping[str, Any]]) -> Given | None:
        """None if a receipt that an earlier release has written does not say it."""
        if not all("events" in part for part in said):
            return None
        events = (from_bytes(bytes.fromhex(part["events"])) for part in said)
        return cls(combined, sum(part["rows"] for part in said), BitMap64.union(BitMap64(), *events))

    @classmethod
    def from_text(cls, text: str) -> Given:
        found = json.loads(text)
        return cls(found["combined"], found["rows"], from_bytes(bytes.fromhex(found["events"])))

    def as_text(self) -> str:
        events = to_bytes(self.events).hex()
        return json.dumps({"combined": self.combined, "rows": self.rows, "events": events})

    def is_among(self, before: Sequence[Given]) -> bool:
        """Whether it was given all of it before. That it was given more is no harm: it was promised that."""
        events = BitMap64.union(BitMap64(), *(given.events for given in before))
        return self.events <= events and self.rows <= max(given.rows for given in before)

    def __str__(self) -> str:
        return f"{self.rows} row{'' if self.rows == 1 else 's'} of {len(self.events)} events"


class WindowIntake(HandoverSink):
    """Hands the partial results of a batch on."""

    def __init__(self, config: WindowIntakeConfig) -> None:
        self._config = config
        self.wants_ids = not config.combines
        super().__init__(config.sink, config.place, config.max_bytes, config.when_full)

    def _forget(self) -> None:
        super()._forget()
        self._marks: Watermarks | None = None
        self._given: dict[BatchRef, Given | None] = {}
        """Of batches that are being committed."""

    def __getstate__(self) -> Mapping[str, Any]:
        return {**super().__getstate__(), "_config": self._config, "wants_ids": self.wants_ids}

    @property
    def marks(self) -> Watermarks:
        if self._marks is None:
            path = marks_path(self._config.place)
            self._marks = Watermarks(path, self._config.progress, self._config.sources)
        return self._marks

    def open(self, part: Part) -> Writer:
        return _WindowWriter(self._config, part)

    def commit(self, batch: BatchRef, parts: Sequence[bytes]) -> None:
        said = [json.loads(part) for part in parts]
        self._given[batch] = Given.together(self._config.combines, said)
        try:
            super().commit(batch, [part["name"].encode() for part in said if part["name"]])
        finally:
            self._given.pop(batch, None)
        seen = _together(said, self._config.progress.last_events)
        if seen is not None:
            self._told(lambda: self.marks.saw(batch, seen))

    def stamp(self, batch: BatchRef) -> int | None:
        return self.marks.stamp(batch)

    def close_batch(self, batch: BatchRef) -> None:
        """A batch has no more rows for the window."""
        self.marks.close(batch)
        self.advance()

    def forget_batch(self, batch: BatchRef) -> None:
        """A batch will not be done again, whether it had rows for the window or not."""
        self.marks.forget(batch)
        self.advance()

    def remind(self) -> None:
        """Give Spark the mark once more that it was given last."""
        if (mark := self.marks.told) is not None:
            self._give(mark)

    def advance(self, taken: Mapping[str, int] | None = None) -> None:
        """Let the mark follow what was seen, and tell Spark; `taken` as in `Watermarks.advance`."""
        self.marks.advance(taken)
        self.tell()

    def tell(self) -> None:
        """Give Spark the mark as far as it may know it; what does not work is tried again the next time."""
        if (mark := self.marks.to_tell()) is not None:
            self._give(mark)

    def _give(self, mark: int) -> None:
        try:
            self.append_sign(f"{MARK_ID}{mark}", json.dumps({CLOSED: mark}).encode())
            self.marks.tell(mark)
        except (LogError, StateError, OSError):
            return

    def release(self) -> None:
        super().release()
        if self._marks is not None:
            self._marks.close_store()
            self._marks = None

    def _made_from(self, batch: BatchRef) -> str:
        given = self._given[batch]
        return "" if given is None else given.as_text()

    def _recognised(self, batch: BatchRef, durable: int) -> bool:
        """Partial rows of a batch that comes again are the same rows, cut up in another way.

        Unless the pipeline was changed since: what is new in it cannot be told from what is there."""
        _, notes = self._open()
        known = [handed.made_from for handed in notes.find(batch) if handed.last <= durable]
        before = [Given.from_text(text) for text in known if text]
        now = self._given[batch]
        if not before or now is None:  # nothing, or noted by a release that did not note this
            return self._config.combines and bool(known)
        if not now.combined and not any(given.combined for given in before):
            return False  # each row is known by its id
        if now.is_among(before):
            return True
        raise StateError(
            f"batch {batch.key} was handed on to the window before, from {before[-1]}, and comes again from "
            f"{now}: what is in front of the window was changed while a run was interrupted. Put it back as "
            "it was until this batch is done"
        )

    def _earlier(self, notes: LinkNotes, batch: BatchRef) -> list[Handed]:
        """Ids of partial rows are of one pass only."""
        return notes.find(batch) if self._config.combines else super()._earlier(notes, batch)

    def _append(self, batch: BatchRef, events: pa.Table) -> None:
        log, _ = self._open()
        if not self._recognised(batch, log.durable_sequence):
            super()._append(batch, events)

    @staticmethod
    def _told(tell: Any) -> None:
        try:
            tell()
        except StateError as error:
            raise TransientError(str(error)) from error


class _WindowWriter(Writer):
    """One task's share: partial rows, and what it says of time."""

    def __init__(self, config: WindowIntakeConfig, part: Part) -> None:
        self._config, self._part = config, part
        self._writer = PartWriter(config.place.parts, part)
        self._partials = Partials(config.keys, config.measures, config.with_origins)
        self._latest: int | None = None
        self._last_end = 0
        self._tail: list[tuple[int, int]] = []
        self._events, self._rows = BitMap64(), 0

    def write(self, rows: pa.RecordBatch) -> Sequence[Refusal]:
        sorted_out = fit(rows)
        if sorted_out.rows.num_rows:
            self._take(sorted_out.rows)
        return sorted_out.refusals

    def _take(self, rows: pa.RecordBatch) -> None:
        times = rows.column(TIME).to_numpy()
        closed = rows.column(CLOSED)[0].as_py() if CLOSED in rows.schema.names else None
        self._look(rows, times)
        places, starts = self._config.panes.spread(times, closed)
        self._last_end = max(self._last_end, int(starts.max()) + self._config.panes.size)
        given = rows.drop_columns([name for name in (TIME, CLOSED) if name in rows.schema.names])
        chosen = given if len(places) == len(times) else given.take(pa.array(places))
        if not self._config.combines:
            self._writer.write(self._each(chosen, starts))
            return
        table = pa.Table.from_batches([chosen.drop_columns([EVENT_ID, ORIGIN])])
        table = table.append_column(START, pa.array(starts)).append_column(FIRST, chosen.column(ORIGIN))
        self._partials.add(table)

    def close(self) -> bytes | None:
        made = self._partials.finish()
        if made is not None:
            self._writer.write(self._named(made))
        name = self._writer.close()
        if self._latest is None:
            return None
        said = {
            "name": name.decode() if name else "",
            "latest": self._latest,
            "tail": self._tail,
            "end": self._last_end,
            "rows": self._rows,
            "events": to_bytes(self._events).hex(),
        }
        return json.dumps(said).encode()

    def abort(self) -> None:
        self._writer.abort()

    def _look(self, rows: pa.RecordBatch, times: Numbers) -> None:
        origins = rows.column(ORIGIN)
        every = pc.list_flatten(origins) if pa.types.is_list(origins.type) else origins
        self._events |= from_numpy(every.to_numpy())
        self._rows += rows.num_rows
        latest = int(times.max())
        self._latest = latest if self._latest is None else max(self._latest, latest)
        wanted = self._config.progress.last_events
        if wanted is None:
            return
        numbers = rows.column(ORIGIN).to_numpy()
        newest = np.argsort(numbers, kind="stable")[-wanted:]
        pairs = zip(numbers[newest].tolist(), times[newest].tolist(), strict=True)
        self._tail = sorted([*self._tail, *pairs])[-wanted:]

    def _each(self, rows: pa.RecordBatch, starts: Numbers) -> pa.RecordBatch:
        """Every event in every window of it, as a row with an id of its own."""
        ids = [
            f"{event}/{start // 1_000_000 if start % 1_000_000 == 0 else start / 1_000_000}"
            for event, start in zip(rows.column(EVENT_ID).to_pylist(), starts.tolist(), strict=True)
        ]
        columns = self._columns(rows)
        arrays = {EVENT_ID: pa.array(ids), START: pa.array(starts), **columns, ORIGIN: rows.column(ORIGIN)}
        return pa.RecordBatch.from_pydict(arrays)

    def _columns(self, rows: pa.RecordBatch) -> dict[str, pa.Array]:
        measures = self._config.measures
        own = {EVENT_ID, ORIGIN, *(measure.column for measure in measures)}
        columns = {name: rows.column(name) for name in rows.schema.names if name not in own}
        for measure in measures:
            columns |= measure.of_rows(rows)
        return columns

    def _named(self, made: pa.Table) -> pa.RecordBatch:
        origins = made.column(FIRST).combine_chunks()
        firsts = pc.list_element(origins, 0) if self._config.with_origins else origins
        source, partition = self._part.batch.source, self._part.partition
        ids = [f"{source}/{first}/~{partition}.{at}" for at, first in enumerate(firsts.to_pylist())]
        columns = {name: made.column(name).combine_chunks() for name in made.column_names if name != FIRST}
        return pa.RecordBatch.from_pydict({EVENT_ID: pa.array(ids), **columns, ORIGIN: origins})


class LateCountConfig(SinkConfig):
    """Counts the late events of a window by its keys. Made by the engine, never written by users."""

    type: Literal["late_count"] = "late_count"
    place: LinkPlace
    keys: tuple[str, ...]

    @property
    def reads(self) -> tuple[str, ...]:
        return self.keys

    def build(self, base: Path) -> LateCount:
        return LateCount(self.place, self.keys)


class LateCount(Sink):
    """Only looks on: what it sees counts as taken by nobody."""

    atomic: ClassVar[bool] = True
    observes: ClassVar[bool] = True

    def __init__(self, place: LinkPlace, keys: tuple[str, ...]) -> None:
        self._place, self._keys = place, keys
        self._marks: Watermarks | None = None
        self._lock = threading.Lock()

    def __getstate__(self) -> Mapping[str, Any]:
        return {"_place": self._place, "_keys": self._keys}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__init__(state["_place"], state["_keys"])  # type: ignore[misc]

    def open(self, part: Part) -> Writer:
        return _LateWriter(self._keys)

    def commit(self, batch: BatchRef, parts: Sequence[bytes]) -> None:
        numbers: Counter[str] = Counter()
        for part in parts:
            numbers.update(json.loads(part))
        with self._lock:
            try:
                if self._marks is None:
                    self._marks = Watermarks(marks_path(self._place), WatermarkRule(0), ())
                self._marks.count_late(batch, numbers)
            except StateError as error:
                raise TransientError(str(error)) from error

    def release(self) -> None:
        if self._marks is not None:
            self._marks.close_store()
            self._marks = None


class _LateWriter(Writer):
    def __init__(self, keys: tuple[str, ...]) -> None:
        self._keys = list(keys)
        self._numbers: Counter[str] = Counter()

    def write(self, rows: pa.RecordBatch) -> Sequence[Refusal]:
        if not self._keys:
            self._numbers["{}"] += rows.num_rows
            return []
        self._numbers.update(json_objects(rows.select(self._keys)).to_pylist())
        return []

    def close(self) -> bytes | None:
        return json.dumps(self._numbers).encode() if self._numbers else None


def marks_path(place: LinkPlace) -> Path:
    return place.notes / "marks.db"


def _together(said: Sequence[Mapping[str, Any]], wanted: int | None) -> Seen | None:
    """What the tasks of a batch say of time, as one."""
    if not said:
        return None
    tail = sorted((int(number), int(moment)) for part in said for number, moment in part["tail"])
    return Seen(
        latest=max(part["latest"] for part in said),
        tail=tuple(tail[-wanted:]) if wanted else (),
        last_end=max(part["end"] for part in said),
    )
