"""An invoker over a real link and real records of a job, with runs that are made of nothing but their
records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml

from signoff.invoker.__main__ import load_job
from signoff.invoker.invoker import Invoker
from signoff.invoker.run_age import RunClock
from signoff.jobs.children import GOES_ON
from signoff.jobs.parameters import asked, to_json
from signoff.jobs.records import Records
from signoff.jobs.state_dir import claim
from signoff.link.job_sink import JobSinkConfig, RequestsSink, invoker_place
from signoff.link.notes import LinkNotes
from signoff.pipeline.started_jobs import GIVEN, KEY
from signoff.sinks.contract import BatchRef, Part

JOB: dict[str, Any] = {
    "name": "report",
    "parameters": {
        "station": "int", "since": {"type": "timestamp", "default": None},
        "upto": {"type": "timestamp", "default": None},
    },
    "key": ["station"],
    "period": ["since", "upto"],
    "sources": {"t": {"type": "table", "path": "./t.db", "table": "t"}},
    "sinks": {"out": {"type": "files", "input": "t", "path": "./out"}},
}  # fmt: skip


@dataclass
class Clock:
    at: float = 1000.0

    def __call__(self) -> float:
        return self.at


@dataclass
class FakeRun:
    """Goes on until it is told how it ended."""

    file: Path
    given: Mapping[str, str]
    asked_by: str
    ended: int | None = None

    def code(self) -> int | None:
        return self.ended

    def stop(self) -> None:
        if self.ended is None:
            self.ended = -15

    kill = stop

    def end(self, code: int = 0, reason: str = "") -> None:
        """With what such a run leaves in the records."""
        graph = load_job(self.file)
        claim(graph)
        wanted = asked(graph, self.given)
        with Records(graph.state) as records:
            if not records.is_done(self.asked_by):
                record = records.begin(wanted.key, self.asked_by, to_json(wanted.values), (None, None))
                state = "done" if code == 0 else "failed"
                records.change(record, state=state, reason=reason)
        self.ended = code


@dataclass
class Scene:
    """One sink `job` of a pipeline in a directory."""

    base: Path
    options: dict[str, Any] = field(default_factory=dict)
    runs: list[FakeRun] = field(default_factory=list)
    steady: Clock = field(default_factory=Clock)
    time_of_day: Clock = field(default_factory=lambda: Clock(1_800_000_000.0))
    boot: str = "first"
    batches: int = 0
    events: int = 0

    def __post_init__(self) -> None:
        (self.base / "job.yaml").write_text(yaml.safe_dump({"state": "./job_state", **JOB}, sort_keys=False))
        self.place = invoker_place(self.base / "state", "start")
        retry = {"attempts": 3, "initial_ms": 10_000, "max_ms": 10_000}
        fields = {
            "job": "job.yaml",
            "input": "x",
            "parameters": {"station": "s"},
            "retry": retry,
            **self.options,
        }
        self.config = JobSinkConfig.model_validate({"type": "job", **fields})

    def invoker(self) -> Invoker:
        """Another one, as after a kill."""
        clock = RunClock(self.steady, self.time_of_day, self.boot)
        return Invoker(
            "alerts", "start", self.config, self.base, self.base / "state", load_job, self._start, clock
        )

    def _start(self, file: Path, given: Mapping[str, str], asked_by: str) -> FakeRun:
        self.runs.append(FakeRun(file, given, asked_by))
        return self.runs[-1]

    def hand_on(self, *rows: Mapping[str, Any]) -> range:
        """A batch of rows: `key` and values of parameters, and `n`, which makes them different. Returns their
        numbers."""
        names = [name for name in rows[0] if name not in ("key", "n")]
        computed = (f"{KEY}0", *(GIVEN + name for name in names))
        sink = RequestsSink("start", self.place, 1024**3, "block", computed)
        first = self.events
        batch = BatchRef("incoming", first, first + len(rows))
        events = range(first, first + len(rows))
        columns: dict[str, Any] = {
            "event_id": [f"incoming/{n}" for n in events],
            "n": [row.get("n", number) for number, row in zip(events, rows, strict=True)],
            f"{KEY}0": [str(row["key"]) for row in rows],
            **{
                GIVEN + name: [None if row[name] is None else str(row[name]) for row in rows]
                for name in names
            },
            "_origin": pa.array(events, pa.int64()),
        }
        writer = sink.open(Part(batch, 0, 0))
        writer.write(pa.record_batch(columns))
        part = writer.close()
        assert part is not None
        sink.commit(batch, [part])
        sink.release()
        self.events += len(rows)
        return events

    def answered(self) -> list[int]:
        notes = LinkNotes(self.place.database, readonly=True)
        try:
            return list(notes.settled())
        finally:
            notes.close()

    def refused(self) -> dict[int, str]:
        notes = LinkNotes(self.place.database, readonly=True)
        try:
            return {number: why for number, (why, _) in notes.answered(0, self.events).refused.items()}
        finally:
            notes.close()


def settle(invoker: Invoker) -> None:
    """Let it do all it can do now."""
    while invoker.step():
        pass


def busy(run: FakeRun) -> None:
    run.ended = GOES_ON
