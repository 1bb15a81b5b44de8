"""The state of the runs that rows have asked for: for `explain` and `status`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from signoff.invoker.notes import Invocation, InvokerNotes, key_text
from signoff.ledger.outcome import EventId
from signoff.ledger.run_lock import RunLock
from signoff.link.job_sink import JobSinkConfig, Request, invoker_place
from signoff.link.lookup import rows_of_event
from signoff.log import LogReader
from signoff.pipeline.graph import Graph

STATUS = "status.json"


@dataclass(frozen=True)
class AskedFor:
    """What one event has asked a sink for."""

    sink: str
    text: str
    run: Invocation | None = None


def asked_for(graph: Graph, event: EventId) -> list[AskedFor]:
    """By sink and run, what an event has asked for. Changes nothing."""
    return [each for name, config in _asking(graph).items() for each in _of_sink(graph, name, config, event)]


def invocations(graph: Graph) -> dict[str, dict[str, Any]]:
    """By sink: keys whose rows wait, run or cool down, as the invoker says that runs now; and how runs
    ended."""
    alive = RunLock(graph.state).held_by() is not None
    return {name: _counts(invoker_place(graph.state, name).notes, alive) for name in _asking(graph)}


def _asking(graph: Graph) -> dict[str, JobSinkConfig]:
    configs = {name: node.config for name, node in graph.sinks.items()}
    return {name: config for name, config in configs.items() if isinstance(config, JobSinkConfig)}


def _of_sink(graph: Graph, sink: str, config: JobSinkConfig, event: EventId) -> Iterator[AskedFor]:
    place = invoker_place(graph.state, sink)
    with closing(InvokerNotes(place.notes, readonly=True)) as notes:
        runs = notes.with_event(event.source, event.sequence)
        covered = {number for run in runs for number in run.rows}
    for run in runs:
        yield AskedFor(sink, _story(config, run), run)
    log = LogReader(place.log)
    waiting = [n for n in rows_of_event(place, event) if n not in covered]
    for row in log.lookup(waiting).values():
        key = key_text(Request.parse(row["payload"]).key)
        yield AskedFor(sink, f"waits for a run of {config.job} for {key}, which has not begun")


def _story(config: JobSinkConfig, run: Invocation) -> str:
    name = f"run {run.run} of {config.job}" if run.run else f"a run of {config.job}"
    of = f"for {key_text(run.key)}, asked for by {run.asked_by.partition(': ')[2]}"
    if run.state == "done":
        return f"settled by {name} {of}; it began at {_when(run.began.at)} and ended at {_when(run.ended_at)}"
    failed = f", failed {run.tries} times: {run.reason}" if run.tries else ""
    failed = failed or (f", is not done yet: {run.reason}" if run.reason else "")
    if run.state == "failed":
        return f"given up with {name} {of}{failed}"
    return f"waits for {name} {of}; it began at {_when(run.began.at)}{failed}"


def _counts(directory: Path, alive: bool) -> dict[str, Any]:
    with closing(InvokerNotes(directory, readonly=True)) as notes:
        ended = notes.counts()
    now: dict[str, Any] = {}
    if alive:
        try:
            now = json.loads((directory / STATUS).read_bytes())
        except (FileNotFoundError, ValueError):
            now = {}
    keys = {name: now.get(name) for name in ("waiting", "running", "cooling", "rows")}
    return {**keys, "runs_done": ended["done"], "runs_failed": ended["failed"]}


def _when(seconds: float | None) -> str:
    return "-" if seconds is None else f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"
