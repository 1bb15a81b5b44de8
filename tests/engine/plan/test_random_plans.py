"""Random plans, run in one session without intake and processes, against a model of each kind of step.

`SIGNOFF_PLANS=500` tries more of them than the few that are run by default; `SIGNOFF_PLANS=300-500` others.
Random pipelines with intake, processes and sinks that fail are in `tests/promises/test_random_graphs.py`.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from signoff.builder import Pipeline
from signoff.engine.plan.compile import RowName, compile_source
from signoff.engine.plan.kept_rows import KeptRows
from signoff.ledger import Ledger
from signoff.log.spark import read_range
from signoff.pipeline.graph import Graph
from signoff.transforms.frame import SEQUENCE
from tests.engine.plan.plan_model import SCHEMA, Row, Told, World, random_world, sql_of_n, write_table
from tests.engine.plan.ran_plan import Ran, log_of, shown

pytestmark = pytest.mark.spark

_FIRST, _, _LAST = os.environ.get("SIGNOFF_PLANS", "").rpartition("-")
SEEDS = range(int(_FIRST or 0), int(_LAST)) if _LAST else (173, 261)
"""The two have steps of all kinds."""
EVENTS = 12
VALUES = [{"n": n, "k": [None, "a", "b", "c"][n * 5 % 4], "parts": list(range(n % 4))} for n in range(EVENTS)]


def graph_of(world: World, directory: Path) -> Graph:
    pipeline = Pipeline("p", state=str(directory / "state"), base=directory)
    pipeline.source("incoming", "generate", count=1)
    pipeline.transform("parsed", "parse_json", input="incoming", schema=SCHEMA)
    for step in world.steps.values():
        fields = dict(step.fields)
        pipeline.transform(step.name, fields.pop("type"), **_wired(step.inputs), **fields)
    for sink in world.sinks.values():
        more = {} if sink.fails_at is None else {"partition_by": {"p": sql_of_n(sink.fails_at)}}
        pipeline.sink(sink.name, "files", path=f"out/{sink.name}", **_wired(sink.inputs), **more)
    return pipeline.graph()


def _wired(inputs: tuple[str, ...]) -> dict[str, Any]:
    return {"input": inputs[0]} if len(inputs) == 1 else {"inputs": list(inputs)}


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return log_of(VALUES, tmp_path_factory.mktemp("random") / "log")


def of_model(rows: list[Row]) -> Counter[str]:
    return Counter(shown(row.origins, row.child, row.values) for row in rows)


def all_events() -> list[Row]:
    return [Row((n,), "", values) for n, values in enumerate(VALUES)]


def said_by(world: World, said: Counter[Any]) -> Counter[Any]:
    """What is said by a `dedupe` is looked at as one thing."""
    dedupes = {name for name, step in world.steps.items() if step.fields["type"] == "dedupe"}
    return Counter(
        {(s, "held" if s in dedupes else k, n, c): number for (s, k, n, c), number in said.items()}
    )


def held(world: World, said: Counter[Any]) -> frozenset[tuple[str, int, str]]:
    return frozenset((s, n, c) for (s, k, n, c) in said_by(world, said) if k == "held")


@dataclass(frozen=True)
class Machine:
    """A graph whose plans can be made, in the middle of a batch with all events."""

    spark: SparkSession
    world: World
    graph: Graph
    log: Path

    def run(self, letters: Collection[RowName] | None = None, **asked: Any) -> Ran:
        rows = read_range(self.spark, self.log, 0, EVENTS, encoding="utf-8", parts=1)
        if letters is not None:
            rows = rows.where(F.col(SEQUENCE).isin(sorted({sequence for sequence, _ in letters})))
        plan = compile_source(self.graph, "incoming", rows, kept=KeptRows(self.graph.state), **asked)
        assert plan is not None
        return Ran(plan, None if asked.get("rows") else letters)

    def compare(self, ran: Ran, what: str, events: list[Row] | None = None, **model: Any) -> Told:
        """Also returns what the model says of rows that do not come to sinks."""
        told = Told(decided=held(self.world, ran.said))
        wanted = self.world.rows_of(all_events() if events is None else events, told, **model)
        for name, rows in ran.sinks.items():
            differ(rows, of_model(wanted.get(name, [])), f"{what}, {name}")
        return told


@pytest.fixture
def machine(spark: SparkSession, tmp_path: Path, log: Path, seed: int) -> Iterator[Machine]:
    world = random_world(seed)
    write_table(tmp_path)
    graph = graph_of(world, tmp_path)
    with Ledger(graph.state / "ledger.db") as ledger:
        ledger.open_batch("incoming", 0, EVENTS, list(world.sinks))
        yield Machine(spark, world, graph, log)


@pytest.mark.parametrize("seed", SEEDS)
def test_each_sink_gets_the_rows_that_the_graph_says(machine: Machine, seed: int) -> None:
    world, counts = machine.world, not machine.world.has("dedupe")
    ran = machine.run(counts=counts)
    told = machine.compare(ran, f"seed {seed}")
    differ(said_by(world, ran.said), told.said, f"seed {seed}, what is said")
    if counts:
        counted = {name: told.ended[name] for name, step in world.steps.items() if step.counted}
        assert ran.ended == {name: number for name, number in counted.items() if number}


@pytest.mark.parametrize("seed", SEEDS)
def test_some_sinks_alone_get_the_same_rows(machine: Machine, seed: int) -> None:
    rng = random.Random(seed)
    some = set(rng.sample(sorted(machine.world.sinks), rng.randint(1, len(machine.world.sinks))))
    ran = machine.run(sinks=some)
    assert ran.sinks.keys() == some
    machine.compare(ran, f"seed {seed}, {sorted(some)}")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_replay_gives_the_rows_behind_its_step_and_no_others(machine: Machine, seed: int) -> None:
    rng, world = random.Random(seed), machine.world
    entry = rng.choice(["parsed", *world.steps])
    came = world.rows_before(entry, all_events())
    letters = {(n, row.child) for row in rng.sample(came, min(3, len(came))) for n in row.origins}
    if world.has("dedupe") or not letters:
        return
    behind = world.downstream(entry)
    unites = any(world.steps[name].unites for name in behind | {entry} if name in world.steps)
    asked = {"entry": entry, "tells": True, "replay": True, "rows": letters if unites else None}
    ran = machine.run(letters, **asked)
    there = behind | {entry, "parsed"} | world.upstream(entry)

    def leads(before: str, node: str) -> bool:
        if node not in behind or (unites and world.is_united_behind(node)):
            return before in there and node in there
        return before == entry or before in behind

    def is_asked(row: Row) -> bool:
        return any((n, row.child) in letters for n in row.origins)

    some = [row for row in all_events() if any(n == row.key[0] for n, _ in letters)]
    machine.compare(
        ran, f"seed {seed}, replay at {entry} of {sorted(letters)}", some, leads=leads, only=(entry, is_asked)
    )


def differ(got: Counter[Any], wanted: Counter[Any], what: str) -> None:
    lacking, more = wanted - got, got - wanted
    lines = [f"- {each}" for each in list(lacking.elements())[:8]]
    lines += [f"+ {each}" for each in list(more.elements())[:8]]
    assert not lines, what + ":\n" + "\n".join(lines)
