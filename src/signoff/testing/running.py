"""Running a pipeline over given events: in a directory that is gone afterwards, on one Spark session.

The session is the one that is given, the one that is there, or one that is started and stays: it takes
seconds to start, and every test after the first uses it.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from signoff.builder import Pipeline
from signoff.engine.spark.session import SHORT_LIVED, start_session
from signoff.errors import PipelineError, Problem
from signoff.ledger.dead_letters import DeadLetters
from signoff.ledger.ledger import Ledger
from signoff.ledger.outcome import Outcome
from signoff.log import LogReader
from signoff.pipeline.graph import Graph
from signoff.pipeline.settings import SparkSettings
from signoff.pipeline.suggestions import suggestion
from signoff.pipeline.tests_block import (
    AFTER,
    DEFAULT_NOW,
    MAPPING_HINT,
    NOT_A_TEXT,
    Answer,
    Case,
    texts_for_columns,
)
from signoff.sinks.contract import EVENT_ID
from signoff.testing import collecting_sinks
from signoff.testing.replaced_nodes import ROWS, rigged
from signoff.testing.stepped_engine import ScriptedEngine
from signoff.transforms.lookup.tables import TABLES

Events = Mapping[str, Sequence[Any]]
"""By node: payloads (texts, bytes, or what is written as JSON), or `Event`s."""


@dataclass(frozen=True)
class Letter:
    """An event that became a dead letter."""

    stage: str
    reason: str
    payload: bytes
    event_id: str


@dataclass(frozen=True)
class Result:
    """What came out of a pipeline."""

    rows: Mapping[str, list[dict[str, Any]]]
    """By sink, and by each transform that was looked at. Without ids."""
    letters: list[Letter]
    drops: Mapping[str, int]
    """Rows that ended without being delivered and without an error, by the step or sink."""
    account: Mapping[str, int]
    """What became of the events of all sources: received, delivered, dropped, dead_lettered, refused, …"""
    ids: Mapping[str, list[str]] = field(default_factory=dict)
    """The id of each row, in the order of `rows`."""
    gave_up: str = ""
    """Why the run did not end by itself: a step that is asked again and again; '' if it did."""


class _Rows(dict[str, list[dict[str, Any]]]):
    def __missing__(self, name: str) -> list[dict[str, Any]]:
        raise KeyError(f'no rows of "{name}" were kept; {suggestion(name, self, "there is")} '
                       f'To see what a transform gives, name it in look_at')  # fmt: skip


def run_pipeline(
    pipeline: str | os.PathLike[str] | Pipeline | Graph,
    given: Events | Sequence[Mapping[str, Any]],
    *,
    look_at: Iterable[str] = (),
    answers: Mapping[str, Sequence[Answer | Mapping[str, Any]]] | None = None,
    failing: Mapping[str, str] | None = None,
    real: Iterable[str] = (),
    now: datetime | str = DEFAULT_NOW,
    at_end: str = "close",
    spark: SparkSession | None = None,
) -> Result:
    """Run a pipeline over events: the real plan, policies, windows and dead letters; no server, no secrets.

    `given`: events by source, or rows by transform; or a list of such mappings, one batch after the other,
    each with `after="10m"` where time passes before it. `look_at`: transforms (`name`, or `name.output` of a
    route) whose rows are wanted; those of sinks always are. `answers`: what the services of `enrich` steps
    say. `failing`: sinks that refuse every row, and why. `real`: sinks that are used as they are, and have no
    `rows` in the result: look at what they have written. `now`, `at_end`: as in a `tests:` block.
    """
    graph = _graph(pipeline)
    fields = {"name": "given in Python", "given": _plain(given), "now": now, "at_end": at_end,
              "answers": {step: tuple(each) for step, each in (answers or {}).items()},
              "failing": dict(failing or {})}  # fmt: skip
    case = Case.model_validate(fields)
    looked_at, as_they_are = tuple(look_at), tuple(real)
    _check_names(graph, case, looked_at, as_they_are)
    return run_case(graph, case, spark=spark, look_at=looked_at, real=as_they_are)


def run_case(
    graph: Graph,
    case: Case,
    *,
    spark: SparkSession | None = None,
    look_at: Iterable[str] = (),
    real: Iterable[str] = (),
) -> Result:
    """Run one test of a pipeline."""
    session = spark or shared_session(graph)
    TABLES.forget()  # a test before may have written other files
    run = uuid.uuid4().hex
    collecting_sinks.begin(run)
    directory = Path(tempfile.mkdtemp(prefix="signoff-test-"))
    try:
        wanted = (*case.expect, *look_at)
        tested = rigged(graph, case, directory / "state", run, session, look_at, frozenset(real))
        engine = ScriptedEngine(tested, case, session)
        try:
            gave_up = engine.run()
        finally:
            engine.close()
        return _result(tested, collecting_sinks.take(run), gave_up or "", {*graph.sinks, *wanted} - {*real})
    finally:
        collecting_sinks.take(run)
        shutil.rmtree(directory, ignore_errors=True)


_sessions: list[SparkSession] = []


def shared_session(graph: Graph) -> SparkSession:
    """The session of all tests of this process. Not the active one: that may be the one of a query of an
    earlier test, with settings of its own."""
    if SparkSession.getActiveSession() is not None:
        return SparkSession.builder.getOrCreate()
    if not _sessions:
        directory = tempfile.mkdtemp(prefix="signoff-test-spark-")
        settings = SparkSettings(master="local[2]", config=_quick(graph.settings.spark.config))
        log_file = Path(directory) / "spark.log"
        _sessions.append(start_session("tests", settings, log_file=log_file, python_path=graph.base))
        atexit.register(_end, directory)
    return _sessions[0]


def _quick(config: Mapping[str, str]) -> dict[str, str]:
    """Java does not optimise what runs only for seconds, and has room for what many tests compile. What the
    pipeline says of Spark holds, but not where it runs."""
    name = "spark.driver.extraJavaOptions"
    kept = {key: value for key, value in config.items() if key not in ("spark.master",)}
    return {**kept, name: f"{SHORT_LIVED} -XX:ReservedCodeCacheSize=240m {kept.get(name, '')}".strip()}


def _end(directory: str) -> None:
    while _sessions:
        _sessions.pop().stop()
    shutil.rmtree(directory, ignore_errors=True)


def _result(graph: Graph, rows: Mapping[str, list[dict[str, Any]]], gave_up: str, wanted: set[str]) -> Result:
    totals: dict[str, int] = {}
    drops: dict[str, int] = {}
    with Ledger(graph.state / "ledger.db", readonly=True) as ledger:
        for name in graph.sources:
            account = ledger.account(name, LogReader(graph.state / "log" / name).head())
            for key in ("received", *(outcome.value for outcome in _FINAL), "in_flight"):
                totals[key] = totals.get(key, 0) + int(getattr(account, key))
        for departure in ledger.departures():
            if departure.outcome == Outcome.DROPPED:
                drops[departure.stage] = drops.get(departure.stage, 0) + departure.rows
    with DeadLetters(graph.state / "dead_letters.db", readonly=True) as stored:
        letters = [
            Letter(each.stage.removesuffix(ROWS), each.reason, each.payload, each.event_id)
            for each in stored.list()
        ]
    found = {name: rows.get(name, []) for name in sorted(wanted)}
    without = {name: [_without_id(row) for row in each] for name, each in found.items()}
    ids = {name: [str(row.get(EVENT_ID)) for row in each] for name, each in found.items()}
    return Result(_Rows(without), letters, drops, totals, ids, gave_up)


_FINAL = (Outcome.DELIVERED, Outcome.DROPPED, Outcome.DEAD_LETTERED, Outcome.REFUSED)


def _without_id(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != EVENT_ID}


def _graph(pipeline: str | os.PathLike[str] | Pipeline | Graph) -> Graph:
    from signoff.catalog import default
    from signoff.pipeline.load import load

    if isinstance(pipeline, Graph):
        return pipeline
    if isinstance(pipeline, Pipeline):
        return pipeline.graph()
    return load(Path(pipeline), default(), require_secrets=False)


def _plain(given: Events | Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    steps = [given] if isinstance(given, Mapping) else list(given)
    return [
        {name: events if name == AFTER else list(events) for name, events in step.items()} for step in steps
    ]


def _check_names(graph: Graph, case: Case, look_at: Sequence[str], real: Sequence[str]) -> None:
    """A test in Python has no line: a wrong name is told as it would be in a file."""
    problems = []
    places = [name for step in case.steps() for name in step.events]
    for name, known in (
        *((name, {*graph.sources, *graph.transforms}) for name in places),
        *((name.partition(".")[0], set(graph.transforms)) for name in look_at if name not in graph.sinks),
        *((name, set(graph.sinks)) for name in (*case.failing, *real)),
        *((name, set(graph.transforms)) for name in case.answers),
    ):
        if name not in known:
            hint = suggestion(name, sorted(known), "there is")
            problems.append(Problem("unknown-node", f'the test names "{name}", which is no such node', hint))
    problems += [
        Problem("bad-value", f"the test {NOT_A_TEXT.format(name)}", MAPPING_HINT)
        for _, name in texts_for_columns(case, graph)
    ]
    if problems:
        raise PipelineError(problems)
