"""A run of the real engine without Spark and without waiting: its batches, rounds, parking, links and ledger.

Replaced are only
- Spark's plan: `Frame` reads the real log, lets `settlement_model.walk` say what the steps make of the
  events, and gives the wide rows to the real pass (`engine.delivery`), task by task;
- threads: the pass serves its sinks one after the other, in an order that the seed decides;
- time: a clock that the schedule moves;
- the sinks themselves, which remember what they took, and the source, which remembers what it was told.

`Machine.point` is called wherever a process may be killed, or another thread may get its turn. A kill is an
exception that nobody catches: all objects are thrown away, and a new machine is made from what is on disk.
"""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Literal
from unittest.mock import patch
from zlib import crc32

import pyarrow as pa
from pyspark.sql.types import StringType

from signoff.engine.batch import backlog, passes, runner, step_retries, waits
from signoff.engine.batch.backlog import Backlog
from signoff.engine.batch.interrupts import Interrupts
from signoff.engine.batch.letters import LetterStore
from signoff.engine.batch.passes import Passes
from signoff.engine.batch.publishing import settle_places
from signoff.engine.batch.runner import BatchRunner
from signoff.engine.batch.stage_counts import StageCounts
from signoff.engine.delivery import sink_pass as delivery
from signoff.engine.delivery.open_sinks import SinkEntry
from signoff.engine.feedback import links
from signoff.engine.feedback.links import LinkFeedback, build_link_feedback
from signoff.engine.plan import duplicates
from signoff.engine.plan.duplicates import Duplicates, repeats_in
from signoff.engine.plan.plan import ErrorPlan, Plan, SinkDelivery, SinkPlan
from signoff.engine.plan.retried_steps import retried_steps
from signoff.engine.query.base import stage_policies
from signoff.engine.replay.batch_name import is_of_letters
from signoff.engine.split.division import divide
from signoff.errors import LogFull, TransientError
from signoff.ledger import DeadLetters, Follower, Ledger
from signoff.ledger.fates import Fates
from signoff.link import handover
from signoff.link.handover import HandoverConfig, HandoverSink
from signoff.link.notes import Handed, LinkNotes
from signoff.link.sink import PipelineSinkConfig
from signoff.log import LogReader, LogWriter, trim
from signoff.log.event_schema import EVENT_SCHEMA
from signoff.pipeline.graph import Graph, Node, Port
from signoff.pipeline.model import (
    BufferSettings,
    LogSettings,
    Retry,
    SinkConfig,
    SourceConfig,
    TransformConfig,
)
from signoff.pipeline.settings import Settings
from signoff.sinks.contract import EVENT_ID, BatchRef, Part, Refusal, Sink, Writer
from signoff.stateful.key_claims import Arrival as Comes
from signoff.stateful.key_claims import Decision, FirstEvent
from signoff.stateful.key_index import FILE, KeyIndex
from signoff.transforms.dedupe import DedupeConfig, Remembering
from signoff.transforms.frame import CHILD, SEQUENCE
from signoff.transforms.row_results import RowResult, result_text
from signoff.transforms.throttle import ThrottleConfig
from tests.engine.settlement_model import Arrival, End, NodeScript, Row, SinkScript, World, walk

SMALL = LogSettings.model_construct(max_bytes=2**30, segment_bytes=1, sync_ms=0, sync_bytes=1)
"""Every batch begins a segment of its own, so that whatever may be trimmed is."""
_VALUE = "value"
_ID = "id"


class Killed(BaseException):
    """The process ends here."""


class TaskLost(BaseException):
    """A Python worker ends here; Spark runs its task again."""


class ToySource(SourceConfig):
    type: Literal["toy"] = "toy"


class ToyStep(TransformConfig):
    type: Literal["toy"] = "toy"


class ToyPatientStep(TransformConfig):
    type: Literal["toy"] = "toy"
    retry: Retry


class ToySinkConfig(SinkConfig):
    type: Literal["toy"] = "toy"


# -- the pipeline

EVERY = 3
"""The interval of a throttle, in microseconds; an event is received at as many as its number."""


def graph_of(world: World, directory: Path) -> Graph:
    """The world as a checked graph."""
    nodes: dict[str, Node] = {}
    for source in world.sources:
        config = ToySource(on_refusal="fail_fast" if source.fail_fast else "wait")
        nodes[source.name] = Node(source.name, "source", config)
    for step in world.steps:
        nodes[step.name] = Node(step.name, "transform", _step_config(step), _ports(step.inputs))
    for sink in world.sinks:
        nodes[sink.name] = Node(sink.name, "sink", _sink_config(sink), _ports(sink.inputs))
    return Graph(Settings(name="world", state="state"), "world.yaml", directory, nodes)


def _step_config(step: NodeScript) -> TransformConfig:
    if step.kind == "dedupe":
        return _remembering(step)
    if step.kind != "step":
        return ToyStep(on_error=step.policy)
    return ToyPatientStep(on_error=step.policy, retry=Retry(attempts=step.tries))


def _remembering(step: NodeScript) -> Remembering:
    if not step.places:
        return DedupeConfig(input="x", keys=("k",), on_error=step.policy, within=1000)
    every = EVERY / 1e6
    return ThrottleConfig(input="x", keys=("k",), on_error=step.policy, events=step.places, every=every)


def _sink_config(sink: SinkScript) -> SinkConfig:
    if sink.kind == "pipeline":
        return PipelineSinkConfig(
            path=f"links/{sink.name}", on_failure=sink.policy, authoritative=sink.authoritative
        )
    full: Literal["block", "drop_newest"] = "drop_newest" if sink.drops_newest else "block"
    buffer = BufferSettings(acknowledgements=sink.buffer == "signs", when_full=full) if sink.buffer else None
    # Without a wait all tries are made by the pass itself; with one of more than a second each is a round.
    wait = 0 if sink.tries and len(sink.name) % 2 == 0 and sink.shaky else 5000
    return ToySinkConfig(
        on_failure=sink.policy,
        retry=Retry(attempts=sink.tries, initial_ms=wait, max_ms=wait),
        buffer=buffer,
        authoritative=sink.authoritative,
        best_effort=sink.best_effort,
    )


def _ports(inputs: Sequence[tuple[str, str | None]]) -> tuple[Port, ...]:
    return tuple(Port(*port) for port in inputs)


# -- what is outside: it outlives every kill


@dataclass
class Outside:
    """What sinks hold and sources were told; whatever happens to the process."""

    world: World
    rng: random.Random
    held: dict[str, dict[str, str]] = field(default_factory=dict)
    """By sink: rows by id, with what they held."""
    taken: dict[tuple[str, str], int] = field(default_factory=dict)
    """How often a sink took a row."""
    published: dict[str, dict[str, dict[str, str]]] = field(default_factory=dict)
    """Of sinks that publish batches: rows by batch."""
    staged: dict[bytes, dict[str, str]] = field(default_factory=dict)
    tried: dict[tuple[str, str], int] = field(default_factory=dict)
    decided: dict[tuple[str, Row], tuple[str, Decision, FirstEvent | None]] = field(default_factory=dict)
    """What the index said last of a row at a dedupe, and its key."""
    undecided: set[tuple[str, Row]] = field(default_factory=set)
    """Rows that came to a dedupe only when its index could not be used."""
    unusable: float = 0.0
    """How often it cannot."""
    runs: dict[tuple[str, Row], int] = field(default_factory=dict)
    """How often a step was run for a row."""
    down: set[str] = field(default_factory=set)
    full: set[str] = field(default_factory=set)
    """Buffers that take nothing."""
    no_room: float = 0.0
    """How often a link finds no room on the disk."""
    disk: random.Random = field(default_factory=random.Random)
    told: dict[tuple[str, int], str] = field(default_factory=dict)
    answered: dict[str, dict[int, str]] = field(default_factory=dict)
    """Of other pipelines: what they said of rows of their link."""
    lettered: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    """Reasons for which letters were stored, by event id and stage."""
    replayed: dict[str, dict[str, set[str]]] = field(default_factory=dict)
    """By sink that hands rows on: rows by the replay by which they came into the log."""
    kills: int = 0
    verbose: bool = False
    story: list[str] = field(default_factory=list)

    def rows(self, sink: str) -> dict[str, str]:
        """What a sink holds; fails if a row was published twice."""
        found = dict(self.held.get(sink, {}))
        place = next((script.kept_at for script in self.world.sinks if script.name == sink), sink)
        for rows in self.published.get(place, {}).values():
            twice = found.keys() & rows.keys()
            assert not twice, f"{sink} holds {sorted(twice)} twice"
            found |= rows
        return found


class Clock:
    """Time as the schedule makes it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    time = monotonic


# -- sinks


class ToySink(Sink):
    """Takes rows one by one."""

    def __init__(self, script: SinkScript, machine: Machine) -> None:
        self.script, self.machine = script, machine

    def open(self, part: Part) -> Writer:
        return ToyWriter(self.script, self.machine)


class ToyWriter(Writer):
    def __init__(self, script: SinkScript, machine: Machine) -> None:
        self.script, self.machine = script, machine

    def write(self, rows: pa.RecordBatch) -> Sequence[Refusal]:
        outside, name = self.machine.outside, self.script.name
        self.machine.point(f"{name} writes", in_task=True)
        if name in outside.down:
            raise TransientError(f"{name} is down")
        refusals = []
        for index, (row, value) in enumerate(_pairs(rows)):
            if outside.world.refuses(self.script, row):
                refusals.append(Refusal(index, "no", transient=False))
            elif outside.tried.get((name, row), 0) < outside.world.stumbles(self.script, row):
                outside.tried[name, row] = outside.tried.get((name, row), 0) + 1
                refusals.append(Refusal(index, "not now", transient=True))
            else:
                outside.held.setdefault(name, {})[row] = value
                outside.taken[name, row] = outside.taken.get((name, row), 0) + 1
        self.machine.point(f"{name} has written", in_task=True)
        return refusals

    def close(self) -> bytes | None:
        return None


class BatchSink(Sink):
    """Publishes batches."""

    atomic: ClassVar[bool] = True
    takes_back: ClassVar[bool] = True

    def __init__(self, script: SinkScript, machine: Machine) -> None:
        self.script, self.machine = script, machine

    def open(self, part: Part) -> Writer:
        return BatchWriter(self.script, self.machine, part)

    def commit(self, batch: BatchRef, parts: Sequence[bytes]) -> None:
        outside, name = self.machine.outside, self.script.name
        self.machine.point(f"{name} publishes", locked=True)
        if name in outside.down:
            raise TransientError(f"{name} is down")
        rows = {row: value for part in parts for row, value in outside.staged[part].items()}
        outside.published.setdefault(self.script.kept_at, {})[batch.key] = rows
        self.machine.point(f"{name} has published", locked=True)


class BatchWriter(Writer):
    def __init__(self, script: SinkScript, machine: Machine, part: Part) -> None:
        self.machine, self.name = machine, script.name
        self._key = f"{script.name} {part.batch.key} {part.attempt}".encode()
        self._rows: dict[str, str] = {}

    def write(self, rows: pa.RecordBatch) -> Sequence[Refusal]:
        self.machine.point(f"{self.name} writes", in_task=True)
        if self.name in self.machine.outside.down and self.machine.rng.random() < 0.5:
            raise TransientError(f"{self.name} is down")
        self._rows |= dict(_pairs(rows))
        return ()

    def close(self) -> bytes | None:
        self.machine.outside.staged[self._key] = self._rows
        return self._key


def _pairs(rows: pa.RecordBatch) -> list[tuple[str, str]]:
    return list(zip(rows.column(EVENT_ID).to_pylist(), rows.column(_VALUE).to_pylist(), strict=True))


# -- Spark


class Frame:
    """Stands for the plan over a range of a log: its rows are made when they are asked for."""

    def __init__(self, machine: Machine, tasks: Callable[[], list[pa.RecordBatch]]) -> None:
        self._machine, self._tasks = machine, tasks
        self._function: Any = None

    def mapInArrow(self, function: Any, ddl: str) -> Frame:  # noqa: N802 - Spark's name
        mapped = Frame(self._machine, self._tasks)
        mapped._function = function
        return mapped

    def toArrow(self) -> pa.Table:  # noqa: N802 - Spark's name
        found = []
        for number, rows in enumerate(self._tasks()):
            found += self._task(number, rows)
        return pa.Table.from_batches(found)

    def _task(self, number: int, rows: pa.RecordBatch) -> list[pa.RecordBatch]:
        for attempt in range(10):
            self._machine.task_attempts += 1
            context = SimpleNamespace(
                partitionId=lambda: number,
                taskAttemptId=lambda: self._machine.task_attempts,
                attemptNumber=lambda attempt=attempt: attempt,
            )
            found = SimpleNamespace(get=lambda context=context: context)
            with patch.object(delivery, "TaskContext", found), suppress(TaskLost):
                return list(self._function(iter([rows])))
        raise AssertionError("a task is lost again and again")


class LazyThread:
    """Runs when it is joined; not always when it is joined first."""

    machine: ClassVar[Machine]

    def __init__(self, target: Callable[[], None], name: str, daemon: bool) -> None:
        self._target: Callable[[], None] | None = target
        self._name, self._joins = name, 0

    def start(self) -> None:
        pass

    def join(self, seconds: float) -> None:
        # By its name, and not by its place in a set of names, so that a seed is always the same run.
        self._joins += 1
        order = crc32(f"{self._name} {self.machine.task_attempts} {self._joins}".encode()) % 10
        if self._target is not None and order < 7:
            target, self._target = self._target, None
            target()

    def is_alive(self) -> bool:
        return self._target is not None


class Query:
    """What the engine calls a query: one source's batches, without the threads that drive them."""

    def __init__(self, machine: Machine, graph: Graph, source: str, sinks: Mapping[str, SinkEntry]) -> None:
        self.machine, self.graph, self.source = machine, graph, source
        self.log_directory = graph.state / "log" / source
        self.log = LogReader(self.log_directory)
        self.shared = SimpleNamespace(control=machine.control)
        self.needed_elsewhere: list[Callable[[], int]] = []
        config = graph.nodes[source].config
        assert isinstance(config, SourceConfig)
        reachable = graph.downstream(source)
        of_source = Passes(
            source=source,
            spark=SimpleNamespace(conf=SimpleNamespace(set=lambda *_: None)),  # type: ignore[arg-type]
            state=graph.state,
            log=self.log_directory,
            sinks={name: entry for name, entry in sinks.items() if name in reachable},
            control=machine.control,
            range_plan=self.range_plan,
            steps=retried_steps(graph),
            isolate=lambda start, end: None,
        )
        self.runner = BatchRunner(
            of_source,
            policies=stage_policies(graph, source),
            stage_counts=StageCounts(source, {}),
            fail_fast=config.on_refusal == "fail_fast",
            ledger=machine.ledger,
            letters=LetterStore(source, machine.letters, self.log),
            repeats=machine.repeats_in(graph),
            links={
                name: source in entry.config.awaited_by
                for name, entry in sinks.items()
                if isinstance(entry.config, HandoverConfig)
            },
        )
        self.parking = Backlog(self.runner)
        self.parking._pause_s = lambda: 0.0  # type: ignore[method-assign]

    def look_again(self, start: int) -> None:
        self.parking.look_again(start)

    def tidy(self) -> None:
        done = self.machine.ledger.needed_from(self.source)
        if self.runner.repeats is not None:
            self.runner.repeats.tidy(self.source, done)
        trim(self.log_directory, min([done, *(needed() for needed in self.needed_elsewhere)]))

    # -- the plan

    def range_plan(self, start: int, end: int, sinks: set[str] | None, events: frozenset[int] | None) -> Plan:
        wanted = [name for name in self.runner.sinks if sinks is None or name in sinks]
        front = self.source in self.machine.names
        steps = [
            s
            for s in self.machine.outside.world.steps
            if front and s.name in self.graph.downstream(self.source)
        ]
        plans = {name: SinkPlan(name, self._deliveries(name), {_VALUE: StringType()}) for name in wanted}
        patient = {s.name for s in steps if s.kind in ("step", "dedupe")}
        changeable = patient.union(*(self.graph.downstream(name) for name in patient))
        errors = tuple(
            ErrorPlan(f"error {s.name}", s.name, s.policy, None, s.name in patient, s.name in changeable)
            for s in steps
            if sinks is None or self.machine.outside.world.sinks_behind(s.name) & sinks
        )
        chosen = [n for n in range(start, end) if events is None or n in events]

        def tasks() -> list[pa.RecordBatch]:
            rng = self.machine.rng
            cut = rng.randint(0, len(chosen)) if rng.random() < 0.5 else len(chosen)
            return [
                self._wide(part, frozenset(wanted), plans, errors) for part in (chosen[:cut], chosen[cut:])
            ]

        return Plan(Frame(self.machine, tasks), plans, errors, shuffled=False)  # type: ignore[arg-type]

    def _deliveries(self, sink: str) -> tuple[SinkDelivery, ...]:
        if self.source not in self.machine.names:
            return (SinkDelivery(f"alive {sink} 0", ((_VALUE, _VALUE),), "", identity=_ID),)
        reached = self.graph.downstream(self.source) | {self.source}
        ports = [port for port in self.graph.nodes[sink].inputs if port.node in reached]
        return tuple(
            SinkDelivery(
                f"alive {sink} {number}",
                ((_VALUE, _VALUE),),
                str(port) if len(ports) > 1 else "",
                frozenset(
                    {port.node} | self.graph.upstream(port.node)
                    if port.node != self.source
                    else {self.source}
                ),
            )
            for number, port in enumerate(ports)
        )

    def _wide(
        self,
        numbers: Sequence[int],
        sinks: frozenset[str],
        plans: Mapping[str, SinkPlan],
        errors: Sequence[ErrorPlan],
    ) -> pa.RecordBatch:
        found = [row for number in numbers for row in self._rows_of(number, sinks)]
        columns = {SEQUENCE: pa.int64(), CHILD: pa.string(), _VALUE: pa.string(), _ID: pa.string()}
        columns |= {d.alive: pa.bool_() for plan in plans.values() for d in plan.deliveries}
        columns |= {error.column: pa.string() for error in errors}
        schema = pa.schema([pa.field(name, kind) for name, kind in columns.items()])
        return pa.RecordBatch.from_pylist(found, schema=schema)

    def _rows_of(self, number: int, sinks: frozenset[str]) -> list[dict[str, Any]]:
        """The wide rows of one event, which is read from the log."""
        event = self.log.lookup([number])[number]
        if self.source not in self.machine.names:
            (sink,) = sinks
            value = json.loads(event["payload"])[_VALUE]
            plain = {SEQUENCE: number, CHILD: "", _VALUE: value, _ID: event["message_id"]}
            return [{**plain, f"alive {sink} 0": True}]
        assert event["payload"] == str(number).encode()
        self.machine.outside.world.decide = self._decide
        found: dict[Row, dict[str, Any]] = {}
        for one in walk(self.machine.outside.world, self.source, number, self._waits, sinks):
            row = one.plain if isinstance(one, Arrival) else one.row
            wide = found.setdefault(
                row, {SEQUENCE: number, CHILD: row[2], _VALUE: f"value of {self.source}/{number}/{row[2]}"}
            )
            wide |= (
                {f"alive {one.sink} {one.delivery}": True} if isinstance(one, Arrival) else self._error(one)
            )
        return list(found.values())

    def _decide(self, step: str, row: Row) -> Literal["passes", "drops", "waits"]:
        """As a worker does: the real index is asked, and a kill may come before and after."""
        machine, outside = self.machine, self.machine.outside
        key = f"key {int(outside.world.chance('key', step, row) * 3)}"
        arrival = Comes(row[1], row[2], row[1], key.encode())
        machine.point("before a key is claimed", locked=True)
        if machine.rng.random() < outside.unusable:
            outside.story.append(f"{step}: {row} waits, the index cannot be used")
            if (step, row) not in outside.decided:
                outside.undecided.add((step, row))
            return "waits"
        index = KeyIndex(self.graph.state / FILE)
        try:
            fates = Fates(machine.ledger)
            (script,) = [each for each in outside.world.steps if each.name == step]
            config = _remembering(script)
            within = round(config.remembers_s * 1e6)
            (decided,) = index.claim(step, config.definition, self.source, [arrival], within, fates)
        finally:
            index.close()
        outside.decided[step, row] = key, *decided
        outside.undecided.discard((step, row))
        outside.story.append(f"{step}: {row} with {key} {decided[0]} {decided[1]}")
        machine.point("a key is claimed", locked=True)
        says: dict[Decision, Literal["passes", "drops", "waits"]] = {
            Decision.FIRST: "passes",
            Decision.WAITS: "waits",
        }
        return says.get(decided[0], "drops")

    def _waits(self, step: str, row: Row) -> bool:
        outside = self.machine.outside
        run = outside.runs.get((step, row), 0)
        outside.runs[step, row] = run + 1
        return run in outside.world.step_stumbles(step, row)

    def _error(self, end: End) -> dict[str, str]:
        steps = {step.name: step for step in self.machine.outside.world.steps}
        if steps[end.step].kind not in ("step", "dedupe"):
            return {f"error {end.step}": "it fails"}
        kinds = {"fails": RowResult.FAILED, "drops": RowResult.DROPPED, "waits": RowResult.WAITS}
        return {f"error {end.step}": result_text(kinds[end.says], f"it {end.says}")}


# -- the process


class Machine:
    """All that a process holds in memory. Made anew after every kill."""

    def __init__(self, outside: Outside, directory: Path, rng: random.Random) -> None:
        self.outside, self.rng, self.directory = outside, rng, directory
        self.clock = Clock()
        self.fuse: int | None = None
        self.loss: int | None = None
        self.meanwhile: Callable[[], None] | None = None
        """What another thread does when it gets its turn in between."""
        self.task_attempts = rng.randrange(10**9)
        self.names = {source.name for source in outside.world.sources}
        self.control = Interrupts()
        self.queries: dict[str, Query] = {}
        self.handovers: list[HandoverSink] = []
        self.repeats: list[Duplicates] = []
        self.feedback: list[LinkFeedback] = []
        self.noted: Handed | None = None
        """What is about to be appended to a link."""
        self.parts: list[Any] = []
        """What the engine's queries share, one for each part of the pipeline."""
        self._patches = ExitStack()

    def start(self) -> None:
        """What the engine and the intakes do when they start."""
        self._patch()
        graph = graph_of(self.outside.world, self.directory)
        # What was dropped by policy behind a link is not known any more when it is folded.
        drops = any(sink.policy == "drop" for sink in self.outside.world.sinks)
        keep = 1 if self.outside.world.chance("keep") < 0.3 and not drops else 1000
        self.ledger = FusedLedger(graph.state / "ledger.db", keep_batches=keep)
        self.letters = FusedLetters(graph.state / "dead_letters.db")
        self.ledger.machine = self.letters.machine = self
        division = divide(graph)
        behind = [divide(boundary.behind(graph, "{}"), boundary).front for boundary in division.boundaries]
        parts = [division.front, *behind]
        for part in parts:
            entries = {name: self._entry(part, name) for name in part.sinks}
            self.queries |= {name: Query(self, part, name, entries) for name in part.sources}
            shared = {"graph": part, "sinks": entries, "ledger": self.ledger, "letters": self.letters}
            self.parts.append(SimpleNamespace(**shared))
        self.feedback = build_link_feedback(
            graph,
            parts,
            self.ledger,
            self.queries,
            self.letters,  # type: ignore[arg-type]
        )
        for sink in self.handovers:
            sink.prepare()
        for query in self.queries.values():
            query.log_directory.mkdir(parents=True, exist_ok=True)
            settle_places(self.ledger, query.source, query.runner.sinks)
            query.parking.resume()
        self.restart_intakes()

    def repeats_in(self, part: Graph) -> Duplicates | None:
        if (found := repeats_in(part, graph_of(self.outside.world, self.directory), self.ledger)) is not None:
            self.repeats.append(found)
        return found

    def restart_intakes(self) -> None:
        """Each remembers nothing of what it has told."""
        self.followers = {name: Follower(self.ledger, name) for name in self.names}
        self.told: set[tuple[str, int]] = set()

    def _entry(self, graph: Graph, name: str) -> SinkEntry:
        config = graph.nodes[name].config
        assert isinstance(config, SinkConfig)
        if isinstance(config, HandoverConfig):
            sink = config.build(graph.base)
            sink._settings = SMALL
            self.handovers.append(sink)
            return SinkEntry(config, sink)
        script = next(script for script in self.outside.world.sinks if script.name == name)
        if script.kind == "batches":
            return SinkEntry(config, BatchSink(script, self), place=script.kept_at)
        return SinkEntry(config, ToySink(script, self))

    def _patch(self) -> None:
        LazyThread.machine = self
        threads = SimpleNamespace(Thread=LazyThread, Lock=threading.Lock)
        for module in (backlog, step_retries, runner, waits, duplicates):
            self._patches.enter_context(patch.object(module, "time", self.clock))
        self._patches.enter_context(patch.object(delivery, "threading", threads))
        self._patches.enter_context(patch.object(delivery, "_RECEIPT_AFTER_S", -1.0))
        self._patches.enter_context(patch.object(passes, "ended", lambda _: {}))
        FusedNotes.machine = FusedWriter.machine = self
        self._patches.enter_context(patch.object(handover, "LinkNotes", FusedNotes))
        self._patches.enter_context(patch.object(links, "LinkNotes", FusedNotes))
        self._patches.enter_context(patch.object(handover, "LogWriter", FusedWriter))

    def end(self) -> None:
        """It is gone, whatever it was doing; nothing is written any more."""
        for sink in self.handovers:
            if sink._log is not None:
                sink._log.abandon()  # type: ignore[attr-defined]
            if sink._notes is not None:
                sink._notes.close()
            sink._log = sink._notes = None
        for feedback in self.feedback:
            feedback.close()
        for each in self.repeats:
            each.close()
        self.ledger.close()
        self.letters.close()
        self._patches.close()

    def point(self, what: str, *, in_task: bool = False, locked: bool = False) -> None:
        """A place where the process may be killed, a worker may be lost, or another thread goes on.

        `locked`: other threads would wait.
        """
        if self.fuse is not None:
            self.fuse -= 1
            if self.fuse <= 0:
                self.fuse = None
                self.outside.story.append(f"killed: {what}")
                raise Killed
        if in_task and self.loss is not None:
            self.loss -= 1
            if self.loss <= 0:
                self.loss = None
                self.outside.story.append(f"worker lost: {what}")
                raise TaskLost
        if self.meanwhile is not None and not locked and self.rng.random() < 0.3:
            act, self.meanwhile = self.meanwhile, None
            self.outside.story.append(f"meanwhile ({what}):")
            act()


class FusedLedger(Ledger):
    machine: Machine

    def open_batch(self, *args: Any, **kwargs: Any) -> Any:
        opened = super().open_batch(*args, **kwargs)
        self.machine.point("batch opened", locked=True)
        return opened

    def record(self, *args: Any, **kwargs: Any) -> Any:
        self.machine.point("before the record")
        recorded = super().record(*args, **kwargs)
        if self.machine.outside.verbose:
            self.machine.outside.story.append(f"  recorded {args}: {kwargs}")
        self.machine.point("after the record")
        return recorded

    def resolve(self, *args: Any, **kwargs: Any) -> Any:
        self.machine.point("before letters are accounted for")
        resolved = super().resolve(*args, **kwargs)
        self.machine.point("after letters are accounted for")
        return resolved

    def release(self, *args: Any, **kwargs: Any) -> Any:
        self.machine.point("before the release")
        released = super().release(*args, **kwargs)
        self.machine.point("after the release")
        return released


class FusedLetters(DeadLetters):
    machine: Machine

    def add(self, letters: Any) -> None:
        letters = list(letters)
        for letter in letters:
            self.machine.outside.lettered.setdefault(letter.key, []).append(letter.reason)
        if letters:
            self.machine.point("before the letters")
        super().add(letters)
        if letters:
            self.machine.point("after the letters")


class FusedNotes(LinkNotes):
    machine: ClassVar[Machine]

    def note(self, handed: Any) -> None:
        self.machine.point("before the note", locked=True)
        super().note(handed)
        self.machine.noted = handed
        self.machine.point("after the note", locked=True)

    def forget(self, handed: Any) -> None:
        self.machine.point("before it is forgotten", locked=True)
        super().forget(handed)
        self.machine.point("after it is forgotten", locked=True)


class FusedWriter(LogWriter):
    machine: ClassVar[Machine]

    def append_all(self, pieces: Sequence[pa.RecordBatch]) -> int:
        if not pieces and self._directory.name in self.machine.outside.full:
            raise LogFull("[log-full] it is full")
        return super().append_all(pieces)

    def _commit(self) -> None:
        outside = self.machine.outside
        if outside.no_room and outside.disk.random() < outside.no_room:
            outside.story.append(f"{self._directory}: no room")
            raise OSError(errno.ENOSPC, "No space left on device")
        ids = {one for piece in self._pending for one in piece.column("message_id").to_pylist()}
        super()._commit()
        noted = self.machine.noted
        if noted is not None and is_of_letters(noted.batch):
            outside.replayed.setdefault(noted.sink, {}).setdefault(noted.batch.key, set()).update(ids)

    def abandon(self) -> None:
        """As if the process were killed: what is not synced is lost."""
        os.close(self._segment)
        os.close(self._lock)
        self._head.close()
        self._lock = self._segment = -1

    def sync(self) -> int:
        waits = bool(self._pending)
        if waits:
            self.machine.point("before the rows of a link are synced", locked=True)
        synced = super().sync()
        if waits:
            self.machine.point("after the rows of a link are synced", locked=True)
        return synced


def fill_logs(world: World, state: Path) -> None:
    """Give every source its events."""
    for source in world.sources:
        writer = LogWriter(state / "log" / source.name, SMALL)
        for number in range(source.events):
            event = {"payload": str(number).encode(), "received_at": 0, "position": number}
            writer.append(pa.RecordBatch.from_pylist([event], schema=EVENT_SCHEMA))
            if number % 2:
                writer.sync()
        writer.close()


@contextmanager
def machine_directory() -> Iterator[Path]:
    """A directory in memory, where there is one: an fsync costs nothing there."""
    base = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(os.environ.get("TMPDIR", "/tmp"))
    directory = Path(tempfile.mkdtemp(prefix="signoff-model-", dir=base))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
