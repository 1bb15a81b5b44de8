"""Says during the demo, in plain words, what can be seen of alarms, windows and the desk."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from signoff.ledger import Ledger
from signoff.pipeline.graph import Graph
from signoff.watch.windows import read_windows
from signoff_alarms.desk import Desk

_LOOK_EVERY_S = 0.2


def say(text: str) -> None:
    """To wherever standard output leads at this moment: during a run, above the live table."""
    print(text, file=sys.stdout, flush=True)


class Seen:
    """When alarms were settled."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._first: tuple[int, float] | None = None
        self._last = (0, 0.0)

    def look(self) -> None:
        settled = _settled(self._graph)
        if settled > self._last[0]:
            self._last = (settled, time.monotonic())
            self._first = self._first or self._last

    @property
    def rate(self) -> float:
        """Alarms a second, from the first that were settled to the last."""
        (number, began), (upto, ended) = self._first or self._last, self._last
        return (upto - number) / max(ended - began, _LOOK_EVERY_S)


@contextmanager
def narrator(desk: Desk, graph: Graph) -> Iterator[Seen]:
    """Says in plain words what can be seen of alarms, windows and the desk."""
    over, seen = threading.Event(), Seen(graph)
    thread = threading.Thread(target=_narrate, args=(_remarks(desk, graph), over, seen), daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def _narrate(remarks: list[Remark], over: threading.Event, seen: Seen) -> None:
    last = False
    while not last:
        last = over.wait(_LOOK_EVERY_S)
        seen.look()
        for remark in [one for one in remarks if one.holds()]:
            say("→ " + remark.text())
            remarks.remove(remark)


@dataclass(frozen=True)
class Remark:
    """Made once, when it holds."""

    holds: Callable[[], bool]
    text: Callable[[], str]


def _remarks(desk: Desk, graph: Graph) -> list[Remark]:
    return [
        Remark(
            lambda: _settled(graph) > 0,
            lambda: "Alarms flow: logged, kept by sensor, counted in the windows' state, then settled.",
        ),
        Remark(
            lambda: any(window.closed_upto for window in read_windows(graph).values()),
            lambda: "The first windows are CLOSED: alarms up to 15 minutes later than others are in them.",
        ),
        Remark(
            lambda: any(window.late for window in read_windows(graph).values()),
            lambda: (
                "Alarms come LATE, hours after their windows were closed. They go to a table of their own."
            ),
        ),
        Remark(
            lambda: desk.state != "open",
            lambda: (
                "The desk is DOWN: it answers 503. Its alerts wait in a log, and go out again with growing\n"
                "  pauses; tables, files and the alarms themselves do not wait for it."
            ),
        ),
        Remark(
            lambda: desk.state == "open again",
            lambda: f"The desk is BACK after refusing {desk.refused} requests. It gets what it is owed.",
        ),
    ]


def _settled(graph: Graph) -> int:
    with Ledger(graph.state / "ledger.db", readonly=True) as ledger:
        return ledger.settled_upto("stations")
