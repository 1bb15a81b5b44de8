"""Replays of dead letters in a simulated run: the real `Replayer`, with Spark's part left to `walk`.

Replaced are only the plan and its rows (see `simulated_run`): of each event of a letter it is said what the
steps make of it now, which rows come to the step the letter is of, and which are left out without a word.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, Literal
from unittest.mock import patch

import pyarrow as pa
from pyspark.sql.types import StringType

from signoff.engine.plan.plan import ErrorPlan, Plan, SinkPlan
from signoff.engine.plan.task_report import ReportKind
from signoff.engine.replay import replayer
from signoff.engine.replay.replayer import Replayer
from signoff.pipeline.graph import Graph
from signoff.transforms.frame import CHILD, EDITION, SEQUENCE
from tests.engine.settlement_model import Arrival, Row, walk
from tests.engine.simulated_run import _ID, _VALUE, Frame, Machine, Query

_SAID: dict[str, ReportKind] = {"reached": ReportKind.REACHED, "left out": ReportKind.LEFT_OUT}


def replay_letters(machine: Machine) -> int:
    """Do the replays that were asked for, as a run does between its batches."""
    spark = SimpleNamespace(createDataFrame=lambda table: table)
    for part in machine.parts:
        part.spark = spark

    def compiled(graph: Graph, source: str, df: pa.Table, **asked: Any) -> Plan:
        return _Replay(machine, graph, source, df, asked["sinks"], asked["entry"]).plan()

    with (
        patch.object(replayer, "compile_source", compiled),
        patch.object(replayer, "explained", lambda r, _: r),
    ):
        return Replayer(machine.parts).run()


class _Replay:
    """What is made of the events of some letters of one stage."""

    def __init__(
        self,
        machine: Machine,
        graph: Graph,
        source: str,
        events: pa.Table,
        sinks: set[str] | None,
        entry: str | None,
    ) -> None:
        self.machine, self.graph, self.source, self.entry = machine, graph, source, entry
        self.world = machine.outside.world
        self.query: Query = machine.queries[source]
        self.events = {event["_sequence"]: event for event in events.to_pylist()}
        behind = graph.downstream(entry or source)
        self.through = None if entry in (None, source) else frozenset({entry, *behind})
        """Steps behind the entry, to which other rows come as well."""
        self.plan_of = graph.nodes.keys() if self.through is None else self.through | graph.upstream(entry)
        self.sinks = frozenset(name for name in graph.sinks if name in behind and name in (sinks or behind))

    def plan(self) -> Plan:
        plans = {
            name: SinkPlan(name, self.query._deliveries(name), {_VALUE: StringType()})
            for name in sorted(self.sinks)
        }
        front = self.source in self.machine.names
        steps = [
            step
            for step in self.world.steps
            if front and step.name in self.graph.downstream(self.source) and step.name in self.plan_of
            if self.world.sinks_behind(step.name) & self.sinks
        ]
        errors = [
            ErrorPlan(f"error {s.name}", s.name, s.policy, None, s.kind in ("step", "dedupe")) for s in steps
        ]
        errors += [
            ErrorPlan(f"{said} {s.name}", s.name, "dead_letter", None, kind=kind)
            for s in steps
            for said, kind in _SAID.items()
            if said != "reached" or s.name == self.entry
        ]
        columns = {SEQUENCE: pa.int64(), CHILD: pa.string(), _VALUE: pa.string(), _ID: pa.string()}
        columns |= {d.alive: pa.bool_() for plan in plans.values() for d in plan.deliveries}
        columns |= {error.column: pa.string() for error in errors}
        schema = pa.schema([pa.field(name, kind) for name, kind in columns.items()])

        def tasks() -> list[pa.RecordBatch]:
            found = [row for number, event in self.events.items() for row in self._rows(number, event)]
            return [pa.RecordBatch.from_pylist(found, schema=schema)]

        frame: Any = Frame(self.machine, tasks)
        return Plan(frame, plans, tuple(errors), shuffled=False)

    def _rows(self, number: int, event: Mapping[str, Any]) -> list[dict[str, Any]]:
        if self.source not in self.machine.names:
            (sink,) = self.sinks
            value = json.loads(event["payload"])[_VALUE]
            plain = {SEQUENCE: number, CHILD: "", _VALUE: value, _ID: event["message_id"]}
            return [{**plain, f"alive {sink} 0": True}]
        found: dict[Row, dict[str, Any]] = {}

        def wide(row: Row) -> dict[str, Any]:
            made = {SEQUENCE: number, CHILD: row[2], _VALUE: f"value of {self.source}/{number}/{row[2]}"}
            return found.setdefault(row, made)

        def hears(said: Literal["reached", "left out"], step: str, row: Row) -> None:
            if self._comes(step, row) and (said != "reached" or step == self.entry):
                wide(row)[f"{said} {step}"] = "so it is"

        edition = event.get(EDITION) or ""
        for one in walk(self.world, self.source, number, self.query._waits, self.sinks, hears, edition):
            if isinstance(one, Arrival):
                if self._comes(one.sink, one.row):
                    wide(one.plain)[f"alive {one.sink} {one.delivery}"] = True
            elif self._comes(one.step, one.row):
                wide(one.row).update(self.query._error(one))
        return list(found.values())

    def _comes(self, node: str, row: Row) -> bool:
        """Behind the entry there is only what came through it."""
        if self.through is None or node == self.entry or node not in self.through:
            return node in self.plan_of
        return self._way(node, row[2])

    def _way(self, node: str, child: str) -> bool:
        """Whether a row has come to a node behind the entry by way of the entry."""
        reached = self.world.reached_from(self.source) | {self.source}
        inputs = {n.name: n.inputs for n in (*self.world.steps, *self.world.sinks)}[node]
        ports = [port for port in inputs if port[0] in reached]
        if len(ports) > 1:
            child, _, label = child.rpartition("/")
            ports = [port for port in ports if ".".join(filter(None, port)) == label]
        (port,) = ports
        if port[0] == self.entry:
            return True
        if port[0] not in (self.through or ()):
            return False
        kind = next(step.kind for step in self.world.steps if step.name == port[0])
        return self._way(port[0], child.rpartition("/")[0] if kind == "unfold" else child)
