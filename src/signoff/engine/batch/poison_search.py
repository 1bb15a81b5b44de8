"""Finding the event a plan fails on.

A bad payload is one row's problem and never comes here. This is for a batch on which the plan itself
fails: an overflow in a user's expression, a Python worker that dies. The range is run again, without
any sink, in up to `PARTS` tasks. Spark names the task that failed, so the next run is about its share
alone, until one event is left. Where no task is named, or the wrong one (behind a shuffle a task's
number says nothing about the range), the range is halved instead.

An event is blamed only if it failed alone, the range without it then passed, and it failed alone once
more, and if the plan passes without any event. So an outage that begins and ends at any moment blames
nobody: it cannot be over for the range and still there for the event. Anything that does not narrow down
like that is an infrastructure failure, and is raised as such.

One culprit in a batch of 100,000 costs 7 runs, in one of a million 8; with halves up to 23 and 26.

Events that end the worker of a function on rows are known by name (`transforms.functions.black_box`): all
of them are found in a run or a few, another one confirms them, and one more comes after the range has passed
without them.

What was found is noted as it is found: a search that is cut off goes on where it was. It is confirmed at
the end like all the rest.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from signoff.errors import EngineError

logger = logging.getLogger(__name__)

PARTS = 50
"""Tasks of a run of the search. A task costs 20 ms, a run 100 ms: the fewest runs are not the fastest."""


@dataclass(frozen=True)
class Failure:
    """A run of the plan that failed."""

    reason: str
    suspect: tuple[int, int] | None = None
    """The share [low, high) of the task that failed first, where that is known."""


Probe = Callable[[int, int, frozenset[int]], Failure | None]
"""Run the plan over [low, high) without some events; None when it passes."""


Deaths = Callable[[int, int, frozenset[int]], Mapping[int, str]]
"""Run the plan over [low, high) without some events, past those a worker dies of: these, and why."""


SearchProgress = Callable[[int, int], None]
"""Told before each run how many events it is about, and how many were found so far."""


class Notes(Protocol):
    """What a search has found so far, kept across restarts."""

    def read(self, start: int, end: int) -> dict[int, str]: ...
    def write(self, start: int, end: int, found: Mapping[int, str]) -> None: ...
    def forget(self) -> None: ...


class PlanFailed(EngineError):
    """Spark failed on a batch, and not because of single events; the query is started again."""


def isolate(
    probe: Probe,
    start: int,
    end: int,
    *,
    together: bool = False,
    deaths: Deaths | None = None,
    notes: Notes | None = None,
    progress: SearchProgress | None = None,
) -> Mapping[int, str]:
    """The events of [start, end) the plan fails on, with the reason.

    Empty when the range passes now: what failed was not the events. Raises PlanFailed when it fails
    without any event, or on none in particular. `together`: events are united, and may fail where each
    alone does not (their sum overflows); then the one is blamed with which those before it begin to fail.
    """
    found: dict[int, str] = notes.read(start, end) if notes else {}

    def told(low: int, high: int, without: frozenset[int]) -> Failure | None:
        if progress:
            progress(high - low, len(found))
        return probe(low, high, without)

    try:
        return _isolate(told, start, end, together, deaths, notes, found)
    except PlanFailed:
        if notes:
            notes.forget()  # it was not the events, or not these
        raise


def _isolate(
    probe: Probe,
    start: int,
    end: int,
    together: bool,
    deaths: Deaths | None,
    notes: Notes | None,
    found: dict[int, str],
) -> Mapping[int, str]:
    first: dict[int, int] = {}
    killers = _deadly(deaths, start, end, frozenset(found)) if deaths else {}
    found.update(killers)
    while (failure := probe(start, end, frozenset(found))) is not None:
        if not found and (empty := probe(start, start, frozenset())) is not None:
            raise PlanFailed(f"the plan fails even without events: {empty.reason}")
        culprit, alone = _search(probe, start, end, frozenset(found), failure)
        alone = alone or probe(culprit, culprit + 1, frozenset(found))
        first[culprit] = culprit
        if alone is None and together:
            culprit, alone = _search_together(probe, start, end, frozenset(found))
            first[culprit] = start
        if alone is None:
            raise PlanFailed(f"the plan fails, but on no single event: {failure.reason}")
        found[culprit] = alone.reason
        if notes:
            notes.write(start, end, found)
    if deaths and killers.keys() - _all_deaths(deaths, start, end, frozenset(killers)).keys():
        raise PlanFailed("workers died of some events, and then they did not")
    for culprit in found.keys() - killers.keys():  # the others have just passed: now it must fail again
        low = first.get(culprit, start if together else culprit)
        if (again := probe(low, culprit + 1, frozenset(found) - {culprit})) is None:
            raise PlanFailed(f"the plan failed on event {culprit}, and then it did not: {found[culprit]}")
        found[culprit] = again.reason
    for culprit, reason in found.items():
        logger.error("the plan fails on event %d, it becomes a dead letter: %s", culprit, reason)
    return found


def _deadly(deaths: Deaths, start: int, end: int, known: frozenset[int]) -> dict[int, str]:
    """The events that a worker dies of in a run of all of them, and once more in one of these alone."""
    named: dict[int, str] = {}
    while more := deaths(start, end, known | frozenset(named)):
        named.update(more)
    again = _all_deaths(deaths, start, end, frozenset(named))
    return {event: reason for event, reason in named.items() if event in again}


def _all_deaths(deaths: Deaths, start: int, end: int, events: frozenset[int]) -> dict[int, str]:
    """Of these events, in runs of them alone, those that a worker dies of."""
    found: dict[int, str] = {}
    everything = frozenset(range(start, end))
    while (rest := events - found.keys()) and (more := deaths(start, end, everything - rest)):
        found.update(more)
    return found


def _search(
    probe: Probe, low: int, high: int, known: frozenset[int], failure: Failure
) -> tuple[int, Failure | None]:
    """Narrow a range that fails down to one event; with its failure, if it has been run alone."""
    latest: Failure | None = failure
    trusted = True
    while high - low > 1:
        suspect = latest.suspect if latest is not None and trusted else None
        if suspect is not None and _is_inside(suspect, low, high):
            if (narrower := probe(*suspect, known)) is not None:
                (low, high), latest = suspect, narrower
                continue
            trusted = False
        middle = (low + high) // 2
        if (latest := probe(low, middle, known)) is not None:
            high = middle
        else:
            low = middle
    return low, latest


def _search_together(probe: Probe, start: int, end: int, known: frozenset[int]) -> tuple[int, Failure | None]:
    """The first event with which the range up to it fails, and how it does."""
    low, high, latest = start, end, probe(start, end, known)
    while high - low > 1:
        middle = (low + high) // 2
        if (failure := probe(start, middle, known)) is not None:
            high, latest = middle, failure
        else:
            low = middle
    return high - 1, latest


def _is_inside(suspect: tuple[int, int], low: int, high: int) -> bool:
    return low <= suspect[0] < suspect[1] <= high and suspect != (low, high)
