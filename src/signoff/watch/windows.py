"""The windows of a pipeline as people see them: up to where they are closed, and what came too late."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

from signoff.engine.split.boundaries import buffer_place
from signoff.ledger.ledger import Ledger
from signoff.ledger.outcome import BUFFER
from signoff.pipeline.graph import Graph
from signoff.stateful.watermarks import Watermarks
from signoff.stateful.window_sinks import STATE, marks_path
from signoff.transforms.window.watermark_rule import WatermarkRule

_MICROS = 1_000_000
_MOST = 100
"""Values of a key that are told; a network may have more stations than anybody reads."""


@dataclass(frozen=True)
class Window:
    """One window step, in a moment."""

    is_open: bool
    """Whether any window has events and is not closed."""
    events: int
    """Events that wait for results of the step: in windows that are open, or closed and not delivered."""
    closed_upto: float | None
    """Windows that end at this time (seconds since the epoch) or before are closed; None: none is."""
    late: int
    """Events that came when a window of theirs was closed."""
    late_by: dict[str, list[tuple[Any, int]]]
    """For each key of the window: its values, and how many events with that value were late, most first."""


def read_windows(graph: Graph, ledger: Ledger | None = None) -> dict[str, Window]:
    """Every window step of the pipeline by name. May be read during a run, and before there was any."""
    names = [name for name, node in graph.transforms.items() if node.config.type in ("window", "burst")]
    if ledger is not None:
        return {name: _read(graph, name, ledger) for name in names}
    with Ledger(graph.state / "ledger.db", readonly=True) as opened:
        return {name: _read(graph, name, opened) for name in names}


def late_in_all(windows: dict[str, Window], key: str) -> Counter[Any]:
    """How many events were late by the values of one key, at all windows that have it. An event that two
    windows missed counts twice."""
    found: Counter[Any] = Counter()
    for window in windows.values():
        found.update(dict(window.late_by.get(key, [])))
    return found


def _waiting(graph: Graph, ledger: Ledger, name: str) -> int:
    """The events of all sources that were handed on to a window, and of which the outcome is not known."""
    waiting = 0
    for source in {source for source, sink in ledger.owing() if sink == name + STATE}:
        if source in graph.sources:
            for batch in ledger.open_batches(source):
                found = batch.sinks.get(name + STATE)
                handed = found.handed_on if found is not None else None
                waiting += len(batch.owed & handed) if handed else 0
    return waiting


def _read(graph: Graph, name: str, ledger: Ledger) -> Window:
    marks = Watermarks(marks_path(buffer_place(graph, name + BUFFER)), WatermarkRule(0), (), readonly=True)
    try:
        mark, late, is_open = marks.mark, marks.late(), marks.open_windows
    finally:
        marks.close_store()
    by: dict[str, Counter[Any]] = {}
    for keys, number in late.items():
        for key, value in json.loads(keys).items():
            by.setdefault(key, Counter())[value] += number
    return Window(
        is_open=is_open,
        events=_waiting(graph, ledger, name),
        closed_upto=None if mark is None else mark / _MICROS,
        late=sum(late.values()),
        late_by={key: found.most_common(_MOST) for key, found in by.items()},
    )
