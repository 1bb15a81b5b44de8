"""The windows of a pipeline as people see them: up to where they are closed, and what came too late."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

from signoff.engine.joints import buffer_place
from signoff.ledger.outcome import BUFFER
from signoff.pipeline.graph import Graph
from signoff.state.marks import Marks, Progress
from signoff.state.windowing import marks_path

_MICROS = 1_000_000
_MOST = 100
"""Values of a key that are told; a network may have more stations than anybody reads."""


@dataclass(frozen=True)
class Window:
    """One window step, in a moment."""

    closed_upto: float | None
    """Windows that end at this time (seconds since the epoch) or before are closed; None: none is."""
    late: int
    """Events that came when a window of theirs was closed."""
    late_by: dict[str, list[tuple[Any, int]]]
    """For each key of the window: its values, and how many events with that value were late, most first."""


def read_windows(graph: Graph) -> dict[str, Window]:
    """Every window step of the pipeline by name. May be read during a run, and before there was any."""
    return {
        name: _read(graph, name) for name, node in graph.transforms.items() if node.config.type == "window"
    }


def late_in_all(windows: dict[str, Window], key: str) -> Counter[Any]:
    """How many events were late by the values of one key, at all windows that have it. An event that two
    windows missed counts twice."""
    found: Counter[Any] = Counter()
    for window in windows.values():
        found.update(dict(window.late_by.get(key, [])))
    return found


def _read(graph: Graph, name: str) -> Window:
    marks = Marks(marks_path(buffer_place(graph, name + BUFFER)), Progress(0), (), readonly=True)
    try:
        mark, late = marks.mark, marks.late()
    finally:
        marks.close_store()
    by: dict[str, Counter[Any]] = {}
    for keys, number in late.items():
        for key, value in json.loads(keys).items():
            by.setdefault(key, Counter())[value] += number
    return Window(
        closed_upto=None if mark is None else mark / _MICROS,
        late=sum(late.values()),
        late_by={key: found.most_common(_MOST) for key, found in by.items()},
    )
