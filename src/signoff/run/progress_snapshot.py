"""One moment of a run, as plain values: what is happening, and the numbers that belong together.

Everything that shows a run is made from these, so that what is shown can be tried without a run. The books
of all sources are read in one transaction; the log's end after them, so that nothing is settled that was
not received.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from signoff.ledger.outcome import Account
from signoff.log import LogReader

if TYPE_CHECKING:
    from signoff.run.supervisor import Run

RATE_OVER_S = 5.0

Phase = Literal["starting", "running", "stopping", "telling", "ended"]
"""`starting`: Spark is not there yet. `stopping`: what is in flight is finished. `telling`: the sources hear
what became of their events."""


@dataclass(frozen=True)
class SourceMoment:
    """One source."""

    account: Account
    taken: int = 0
    """Events in batches that are under way."""
    intake: str = "starting"
    """What its intake says of itself."""
    expected: int | None = None
    """How many events there will be in all, where that is known."""
    estimated: bool = False
    """By how much of its input the source has read."""


@dataclass(frozen=True)
class SinkMoment:
    """One sink."""

    rows: int = 0
    trouble: str = ""
    """Why it fails; '' while it works."""
    failing_since: float | None = None
    """Seconds since the epoch."""


@dataclass(frozen=True)
class Moment:
    """A run at one moment."""

    name: str
    phase: Phase
    since_s: float
    """How long the phase has lasted."""
    sources: Mapping[str, SourceMoment]
    sinks: Mapping[str, SinkMoment]
    at: float
    """Of the monotonic clock."""
    left_s: float | None = None
    """How long the phase may still last, where there is a limit."""

    @property
    def in_flight(self) -> int:
        return sum(source.account.in_flight for source in self.sources.values())

    @property
    def settled(self) -> int:
        return sum(source.account.settled for source in self.sources.values())

    @property
    def taken(self) -> int:
        return sum(source.taken for source in self.sources.values())

    @property
    def expected(self) -> int | None:
        """How many events there will be in all; None while a source may bring any number."""
        found = [source.expected for source in self.sources.values()]
        return None if not found or None in found else sum(number or 0 for number in found)

    @property
    def estimated(self) -> bool:
        """Whether `expected` is only about right."""
        return any(source.estimated for source in self.sources.values())


class Rates:
    """How many events a second were received and settled over the last seconds."""

    def __init__(self) -> None:
        self._seen: deque[Moment] = deque()

    def add(self, moment: Moment) -> None:
        self._seen.append(moment)
        while len(self._seen) > 2 and moment.at - self._seen[1].at >= RATE_OVER_S:
            self._seen.popleft()

    def received(self, source: str) -> float:
        return self._rate(lambda moment: _account(moment, source).received)

    @property
    def settled(self) -> float:
        return self._rate(lambda moment: moment.settled)

    def _rate(self, number: Callable[[Moment], int]) -> float:
        if len(self._seen) < 2:
            return 0.0
        first, last = self._seen[0], self._seen[-1]
        return max(number(last) - number(first), 0) / max(last.at - first.at, 0.001)


def read_moment(run: Run) -> Moment:
    """What a run says at this moment."""
    assert run.ledger is not None
    now = time.monotonic()
    phase, since, until = run.phase
    if phase == "running" and not engine_runs(run):
        phase = "starting"
    with run.ledger.snapshot():
        sources, totals = _sources(run), run.ledger.sink_totals()
    sinks = {}
    for name in run.graph.sinks:
        found = totals.get(name)
        failing = found.failing_since if found else None
        trouble = found.error if found and failing is not None else ""
        sinks[name] = SinkMoment(found.rows if found else 0, trouble, failing)
    left = None if until is None else max(until - now, 0.0)
    return Moment(run.graph.name, phase, now - since, sources, sinks, now, left)


def _sources(run: Run) -> dict[str, SourceMoment]:
    assert run.ledger is not None
    found = {}
    for name in run.graph.sources:
        books = run.ledger.books(name)
        account = books.account(LogReader(run.graph.state / "log" / name).head())
        status = run.intake_status(name)
        said: str = "starting" if status is None else status.state
        if status is not None and status.reason:
            said += f": {status.reason}"
        ended = status is not None and status.state in ("ended", "stopped")
        count = getattr(run.graph.nodes[name].config, "count", None)
        expected = account.received if ended else count if isinstance(count, int) else None
        estimated = expected is None and status is not None and status.expected is not None
        if estimated and status is not None:
            expected = max(status.expected or 0, account.received)
        found[name] = SourceMoment(account, books.owed, said, expected, estimated)
    return found


def engine_runs(run: Run) -> bool:
    """Whether the engine of this very run has its session."""
    try:
        said = json.loads((run.graph.state / "engine.json").read_bytes())
    except (OSError, ValueError):
        return False
    return bool(said.get("pid") == run.engine_pid and said.get("state") != "starting")


def _account(moment: Moment, source: str) -> Account:
    found = moment.sources.get(source)
    return found.account if found else Account()
