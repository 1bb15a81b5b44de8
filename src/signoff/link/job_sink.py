"""Sink `job`: rows ask for runs of a job. They are handed on to the invoker (`signoff.invoker`), through a
link.

A row is handed on as a request: the values of its key and of the job's parameters, and a hash of all its
columns, by which an equal row is recognised. Nothing else of it is in the link; what becomes a dead letter is
the event itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import orjson
import pyarrow as pa
from pydantic import Field

from signoff.json_text import json_objects
from signoff.link.handover import HandoverConfig, HandoverSink, LinkPlace, PartWriter
from signoff.pipeline.durations import Duration
from signoff.pipeline.model import Retry
from signoff.pipeline.started_jobs import GIVEN, KEY, StartsJob
from signoff.sinks.contract import Part, Sink, Writer

INVOKER = ".invoker"
"""Ends the name of the directory in which the requests for the runs of a sink are kept."""

Limit = Annotated[Duration, Field(ge=0)]


class JobSinkConfig(StartsJob):
    """A run of a job for the rows of a key."""

    summary: ClassVar[str] = "Starts runs of a job; an event is settled when a run that covers it is done."
    example: ClassVar[str] = """\
job: ./failure_report.yaml
parameters: {station: stationId, day: date(windowStart)}
key: [stationId, date(windowStart)]
cool_down: 15m
"""

    type: Literal["job"] = "job"
    cool_down: Limit = 0.0
    """Time from the beginning of a run to that of the next for the same key. Rows that come meanwhile wait,
    and are all settled by that next run."""
    at_most: int = Field(default=1, ge=1)
    """Runs of this sink that may go on at once; each is a process with a Spark of its own."""
    same_within: Limit = 3600.0
    """A row with the same key that is equal to an earlier one in all its columns is the same again, and is
    settled by the same run, also if that has ended, for so long after it began. 0 takes each row for a new
    one."""
    complete_within: Annotated[Duration, Field(ge=0)] = 86_400.0
    """How long a run waits, asked for again as `retry` says, for tables that are not complete as far as it
    needs them (`needed_to`). Then it has failed, and `on_failure` applies."""
    retry: Retry = Retry(attempts=3, initial_ms=60_000, max_ms=600_000)
    """How often, and with which waits, a run that fails is tried in all before `on_failure` applies to the
    rows that asked for it."""

    def build(self, base: Path) -> Sink:
        raise NotImplementedError("it is cut out of the graph: see engine.split.division")


def invoker_place(state: Path, sink: str) -> LinkPlace:
    """Where the requests of a sink are kept."""
    directory = state / "links" / f"{sink}{INVOKER}"
    return LinkPlace(directory / "log", directory)


@dataclass(frozen=True, slots=True)
class Request:
    """What a row asks for."""

    key: tuple[str | None, ...]
    given: Mapping[str, str | None]
    """Values of parameters by name, as texts."""
    content: str
    """The same for rows that are equal in all columns."""

    @classmethod
    def parse(cls, payload: bytes) -> Request:
        found = orjson.loads(payload)
        return cls(tuple(found["key"]), found["given"], found["content"])


class RequestsConfig(HandoverConfig):
    """Where the graph was cut for a sink `job`. Made by the engine, never written by users."""

    computed: dict[str, str]
    """Expressions by the columns that bring them."""
    fields_of: dict[str, str]

    def expressions(self) -> Mapping[str, str]:
        return self.computed

    def field_of(self, expression: str) -> str:
        return self.fields_of[expression]

    def build(self, base: Path) -> HandoverSink:
        return RequestsSink(self.sink, self.place, self.max_bytes, self.when_full, tuple(self.computed))


class RequestsSink(HandoverSink):
    """Appends the requests of a batch to the log of the invoker."""

    kept: ClassVar[tuple[str, ...]] = (*HandoverSink.kept, "_computed")

    def __init__(
        self, name: str, place: LinkPlace, max_bytes: int, when_full: Any, computed: tuple[str, ...]
    ):
        super().__init__(name, place, max_bytes, when_full)
        self._computed = computed

    def open(self, part: Part) -> Writer:
        return RequestWriter(self._place.parts, part, self._computed)


class RequestWriter(PartWriter):
    """One task's requests."""

    def __init__(self, directory: Path, part: Part, computed: tuple[str, ...]) -> None:
        super().__init__(directory, part)
        self._keys = [name for name in computed if name.startswith(KEY)]
        self._given = [name for name in computed if name.startswith(GIVEN)]

    def _payloads(self, columns: pa.RecordBatch) -> pa.Array:
        computed = [*self._keys, *self._given]
        asked = {name: columns.column(name).to_pylist() for name in computed}
        contents = json_objects(columns.drop_columns(computed)).to_pylist()
        return pa.array([self._payload(asked, row, text) for row, text in enumerate(contents)], pa.binary())

    def _payload(self, asked: Mapping[str, list[str | None]], row: int, text: str) -> bytes:
        given = {name.removeprefix(GIVEN): asked[name][row] for name in self._given}
        key = [asked[name][row] for name in self._keys] or list(given.values())
        content = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        return orjson.dumps({"key": key, "given": given, "content": content})
