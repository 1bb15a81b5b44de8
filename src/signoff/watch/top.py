"""What `signoff top` draws: rates, backlog, sinks, windows and problems of a pipeline, from its status.

It reads what `signoff status --json` prints, again and again, and adds rates: differences between readings.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from signoff.terminal import written_out
from signoff.watch.drawing import cut, duration, events, named_table, number

RATE_OVER_S = 5.0
_OUTCOMES = ("delivered", "dropped", "dead_lettered", "refused", "expired")
_MOST_PROBLEMS = 8

Status = Mapping[str, Any]


@dataclass(frozen=True)
class Reading:
    """The status at one moment of the monotonic clock."""

    at: float
    status: Status


class Readings:
    """Those of the last seconds."""

    def __init__(self) -> None:
        self._seen: deque[Reading] = deque()

    def add(self, status: Status, at: float | None = None) -> None:
        self._seen.append(Reading(time.monotonic() if at is None else at, status))
        while len(self._seen) > 2 and self._seen[-1].at - self._seen[1].at >= RATE_OVER_S:
            self._seen.popleft()

    @property
    def last(self) -> Status:
        return self._seen[-1].status

    def rate(self, count: Callable[[Status], int]) -> float:
        """By how much a count has grown a second; 0 where it has shrunk or there is one reading only."""
        first, last = self._seen[0], self._seen[-1]
        if last.at <= first.at:
            return 0.0
        try:
            return max(count(last.status) - count(first.status), 0) / (last.at - first.at)
        except KeyError:  # a node that was not there then
            return 0.0


def picture(readings: Readings, width: int = 80) -> RenderableType:
    """All of it, at most `width` columns wide."""
    status = readings.last
    parts: list[RenderableType] = [_heading(status), *_sources(readings, width), _sinks(readings, width)]
    parts += _steps(status, width)
    parts += [cut(f"! {problem}", "yellow") for problem in _shortened(list(problems(status)))]
    return Group(*parts)


def problems(status: Status) -> Iterator[str]:
    """What somebody may have to look at, the most urgent first."""
    for name, sink in status["sinks"].items():
        if sink["failing_since"]:
            yield f'sink "{name}" fails: {sink["last_error"]}'
    for name, source in status["sources"].items():
        for held in source["held"]:
            yield f'source "{name}" is held back: {held["reason"]}'
        if source["reason"] and not source["held"]:
            yield f'source "{name}": {source["reason"]}'
    if letters := status["dead_letters"]:
        yield f"{letters:,} dead letters (signoff dead-letters list)"
    for name, account in status["stranded"].items():
        yield f'source "{name}" is gone, {account["in_flight"]:,} of its events are not settled'
    yield from status["waits_for_gone"]
    for left in sorted(status["left_at"], key=lambda left: -left["rows"]):
        if left["outcome"] != "dropped":
            outcome = left["outcome"].replace("_", "-")
            yield f"{left['stage']}: {left['rows']:,} rows {outcome}: {left['reason']}"


def _shortened(found: list[str]) -> list[str]:
    more = len(found) - _MOST_PROBLEMS
    return found if more <= 0 else [*found[:_MOST_PROBLEMS], f"{more} more (signoff status)"]


def _heading(status: Status) -> Text:
    if not status["alive"]:
        return cut(f"{status['pipeline']}: not running", "bold")
    return cut(f"{status['pipeline']}: {status['engine'] or 'starting'} (pid {status['pid']})", "bold")


def _sources(readings: Readings, width: int) -> Iterator[RenderableType]:
    """A table of what moves, and below it what became of all events so far."""
    rows, accounts = {}, []
    for name, source in readings.last["sources"].items():
        oldest = source["oldest_in_flight_seconds"]
        rows[name] = [
            number(round(readings.rate(partial(_received, name)))),
            number(round(readings.rate(partial(_settled, name)))),
            number(source["in_flight"]),
            "-" if oldest is None else duration(oldest),
            "held" if source["held_back"] else source["intake"] or "-",
        ]
        found = [
            f"{outcome.replace('_', '-')} {source[outcome]:,}" for outcome in _OUTCOMES if source[outcome]
        ]
        accounts.append(f"{name}: {', '.join(found) or 'nothing settled'}, of {source['received']:,}")
    yield named_table("source", ["in/s", "out/s", "in flight", "oldest", "intake"], rows, width)
    yield from map(cut, accounts)


def _received(source: str, status: Status) -> int:
    return int(status["sources"][source]["received"])


def _settled(source: str, status: Status) -> int:
    return _received(source, status) - int(status["sources"][source]["in_flight"])


def _taken(sink: str, status: Status) -> int:
    return int(status["sinks"][sink]["rows"])


def _sinks(readings: Readings, width: int) -> RenderableType:
    rows, states = {}, []
    for name, sink in readings.last["sinks"].items():
        rate = readings.rate(partial(_taken, name))
        rows[name] = [number(sink["rows"]), number(round(rate))]
        if sink["failing_since"]:
            lasts = duration(sink["failing_seconds"] or 0.0)
            states.append(Text(f"failing for {lasts}: {written_out(sink['last_error'])}", style="red"))
        elif sink["owes"]:
            states.append(Text(f"owes {events(sink['owes'])}"))
        else:
            states.append(Text("ok", style="green"))
    return named_table("sink", ["rows", "rows/s"], rows, width, states)


def _steps(status: Status, width: int) -> Iterator[RenderableType]:
    """What holds events: windows, folds, dedupes and buffers, where there are any."""
    tables: list[tuple[str, list[str], dict[str, list[str]]]] = [
        (
            "window",
            ["closed up to", "events in it", "late"],
            {
                name: [window["closed_upto"] or "-", number(window["events"]), number(window["late"])]
                for name, window in status["windows"].items()
            },
        ),
        (
            "fold",
            ["open groups"],
            {name: [number(fold["open_groups"])] for name, fold in status["folds"].items()},
        ),
        (
            "dedupe",
            ["keys", "waiting"],
            {
                name: [number(step["keys"]), number(step["waiting"])]
                for name, step in status["dedupes"].items()
            },
        ),
        (
            "buffer",
            ["waiting", "MB"],
            {
                name: [number(buffer["waiting"]), f"{buffer['bytes'] / 1e6:,.1f}"]
                for name, buffer in status["buffers"].items()
                if buffer["sink"] in status["sinks"] or buffer["orphan"]
            },
        ),
    ]
    for first, heads, rows in tables:
        if rows:
            yield named_table(first, heads, rows, width)
