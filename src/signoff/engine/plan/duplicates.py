"""Events that repeat others: found while a plan runs, kept waiting, and forgotten in the end.

    executor   `decide_repeats`: asks the index about the rows that come to a `dedupe`
    driver     `Duplicates`: which rows still wait for an event in flight, and what is said of the others;
               forgets keys that are too old or too many

A duplicate of an event in flight is a row that waits (see `step_retries`), but not for a step to be tried
again: nothing is done for it until the ledger says that the event it repeats is settled. If that ended well,
the duplicate is dropped without any pass over it. If it was refused or has expired, the plan is run for the
duplicate, which may be the first now."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyroaring import BitMap64

from signoff.engine.plan.lineage import made_from
from signoff.engine.plan.task_report import ReportKind, TaskReport
from signoff.errors import StateError
from signoff.ledger.fates import Fate, Fates
from signoff.ledger.ledger import Ledger
from signoff.ledger.outcome import RowRef
from signoff.pipeline.graph import Graph
from signoff.pipeline.secrets import redact
from signoff.stateful.key_claims import Arrival, Decided, Decision
from signoff.stateful.key_index import FILE, KeyIndex, WaitingDuplicate, repeats, waits_for
from signoff.transforms.contract import Repeats as MakesDecisions
from signoff.transforms.dedupe import Remembering
from signoff.transforms.row_results import RowResult, result_text

logger = logging.getLogger(__name__)

_DECIDED = pa.struct([("ends", pa.bool_()), ("error", pa.string())])
_NOTHING: dict[str, Any] = {"ends": None, "error": None}
_FIND_EVERY = 10
"""Who waits is not looked up more often than after so many times as long as that takes."""
_FORGET_S = 1.0
_FORGET_SHARE = 0.5
"""How often keys are forgotten, and how much of the time that may take."""

_open: dict[tuple[int, Path], tuple[int, KeyIndex, Ledger]] = {}
"""Of this worker process, by its id (a fork has connections of its own) and the state directory: the inode of
the index, the index and the ledger."""


def decide_repeats(state: Path, source: str, step: str, *, replay: bool) -> MakesDecisions:
    """What a plan of `source` asks at a `dedupe`. `replay`: about letters, whose events are settled."""

    def make(definition: str, within_s: float) -> Callable[[pa.Array], pa.Array]:
        def decide(rows: pa.Array) -> pa.Array:
            asked = _Asked(state, source, step, definition, round(within_s * 1e6), replay)
            return _decide(asked, rows)

        return decide

    return make


@dataclass(frozen=True)
class _Asked:
    state: Path
    source: str
    step: str
    definition: str
    within: int
    replay: bool


def _decide(asked: _Asked, rows: pa.Array) -> pa.Array:
    """Executor: in a row's place is null where it is not asked about."""
    there = [(place, row) for place, row in enumerate(rows.to_pylist()) if row is not None]
    answers = [_NOTHING] * len(rows)
    arrivals = [
        Arrival(row["sequence"], row["child"], row["received"], row["key"], tuple(row["others"] or ()))
        for _, row in there
    ]
    try:
        index, ledger = _opened(asked.state)
        decided = index.claim(
            asked.step,
            asked.definition,
            asked.source,
            arrivals,
            asked.within,
            Fates(ledger),
            replay=asked.replay,
        )
    except StateError as error:
        # A full disk, a lock that is held too long: nobody knows whether they repeat others, so they wait.
        reason = result_text(RowResult.WAITS, redact(f"the index of keys cannot be used: {error}"))
        for place, _ in there:
            answers[place] = {"ends": False, "error": reason}
    else:
        for (place, _), each in zip(there, decided, strict=True):
            answers[place] = _answer(each, asked.definition)
    return pa.array(answers, _DECIDED)


def _answer(decided: Decided, definition: str) -> dict[str, Any]:
    decision, owner = decided
    if decision == Decision.GIVEN_UP:
        return {"ends": False, "error": result_text(RowResult.DROPPED, "its source has given it up")}
    if decision == Decision.FIRST or owner is None:
        return _NOTHING
    if decision == Decision.REPEATS:
        return {"ends": True, "error": result_text(RowResult.DROPPED, repeats(owner.event_id, definition))}
    return {"ends": False, "error": result_text(RowResult.WAITS, waits_for(owner.event_id, definition))}


def _opened(state: Path) -> tuple[KeyIndex, Ledger]:
    path, at = state / FILE, (os.getpid(), state)
    inode = path.stat().st_ino if path.exists() else -1
    known = _open.get(at)
    if known is None or known[0] != inode:
        index = KeyIndex(path)
        known = _open[at] = (path.stat().st_ino, index, Ledger(state / "ledger.db", readonly=True))
    return known[1], known[2]


@dataclass(frozen=True)
class _Blocked:
    """Which events wait, as of some version of ledger and index."""

    seen: tuple[int, int]
    events: BitMap64
    good_until: float


class Duplicates:
    """The driver's side, for the `dedupe` and `throttle` steps of one part of a pipeline."""

    def __init__(self, graph: Graph, whole: Graph, ledger: Ledger) -> None:
        """`whole`: the pipeline that `graph` is a part of."""
        self._ledger = ledger
        self._steps = _dedupes(graph)
        self._all = {name: step.definition for name, step in _dedupes(whole).items()}
        self._sources = {name: sorted(graph.upstream_sources(name)) for name in self._steps}
        self._index = KeyIndex(graph.state / FILE)
        self._blocked: dict[str, _Blocked] = {}
        self._unsettled: dict[str, int | None] = {}
        self._forget_at = 0.0

    def close(self) -> None:
        self._index.close()

    def blocked(self, source: str) -> BitMap64:
        """The events of a source of which a row waits for an event in flight, as of now."""
        seen = (self._ledger.version(), self._index.version())
        known = self._blocked.get(source)
        if known is None or (known.seen != seen and time.monotonic() >= known.good_until):
            began = time.monotonic()
            found = self._find_blocked(source)
            took = time.monotonic() - began
            known = self._blocked[source] = _Blocked(seen, found, began + took * _FIND_EVERY)
        return known.events

    def news(self, source: str, step: str, rows: Iterable[RowRef]) -> tuple[list[TaskReport], frozenset[int]]:
        """Of rows that wait for a step: what can be said without a pass, and the events that need one.

        A row of which the index does not know that it waits was not decided about: the index could not be
        used then. Nothing can be said of it, and it must not be passed over.
        """
        asked = dict[int, list[RowRef]]()
        for row in rows:
            asked.setdefault(row.sequence, []).append(row)
        fates, waiting = Fates(self._ledger), dict[int, list[WaitingDuplicate]]()
        for each in self._index.waiting(source, sorted(asked)):
            if each.step == step and self._is_now(each):
                waiting.setdefault(each.sequence, []).append(each)
        known: list[TaskReport] = []
        unknown: set[int] = set()
        for sequence, mine in asked.items():
            found = [
                (each, fates(each.owner.source, each.owner.sequence)) for each in waiting.get(sequence, ())
            ]
            whole = all(any(made_from(row.child, each.child) for each, _ in found) for row in mine)
            blocked = next((each for each, fate in found if fate == Fate.IN_FLIGHT), None)
            # Of several places of a key another may be free by now.
            ask = {Fate.LOST, Fate.SETTLED} if self._steps[step].places > 1 else {Fate.LOST}
            if any(fate in ask for _, fate in found) or not (whole or blocked):
                unknown.add(sequence)
            elif not whole and blocked is not None:  # it is asked about when nothing holds its event back
                text = waits_for(blocked.owner, blocked.definition)
                known += [TaskReport(step, ReportKind.WAITS, sequence, row.child, text) for row in mine]
            else:
                for each, fate in found:
                    ended = fate == Fate.SETTLED
                    kind, text_of = (ReportKind.DROPPED, repeats) if ended else (ReportKind.WAITS, waits_for)
                    known.append(
                        TaskReport(step, kind, sequence, each.child, text_of(each.owner, each.definition))
                    )
        return known, frozenset(unknown)

    def release(self, source: str, sequences: Iterable[int]) -> None:
        """The ledger is about to forget that these events were refused or have expired."""
        self._index.release(source, sequences)

    def say_changes(self) -> None:
        """Say which steps begin anew, because they compare something else than before."""
        for name, definition in self._index.steps().items():
            step = self._steps.get(name)
            if step is not None and step.definition != definition:
                logger.warning(
                    '%s "%s" compares other keys than before (%s, now %s): it begins anew, and knows no '
                    "event that came before", step.type, name, definition, step.definition,
                )  # fmt: skip

    def tidy(self, source: str, unsettled: int | None) -> None:
        """Forget what is too old or too much. `unsettled`: from where on events of the source are not
        settled; None: all are."""
        self._unsettled[source] = unsettled
        if (now := time.monotonic()) < self._forget_at:
            return
        self._forget_at = now + _FORGET_S
        until = now + _FORGET_S * _FORGET_SHARE
        for name, step in self._steps.items():
            oldest = self._oldest(name, step)
            if oldest is not None:
                before = oldest - round(step.remembers_s * 1e6)
                _while(until, partial(self._index.forget_before, name, step.definition, before))
            _while(until, partial(self._index.forget_beyond, name, step.definition, step.max_keys))
        _while(until, partial(self._index.forget_others, self._all))
        for each in self._unsettled:
            self._tidy_waits(each)

    def _oldest(self, name: str, step: Remembering) -> int | None:
        """No event that is still to come to a step was received before, in microseconds; None: unknown."""
        newest = [self._index.received_before(name, step.definition, of) for of in self._sources[name]]
        if not (times := [max(filter(None, newest), default=0)])[0]:
            return None
        for source in self._sources[name]:
            sequence = self._unsettled.get(source, 0)
            if sequence is not None:
                received = self._index.received_before(name, step.definition, source, sequence)
                if received is None:
                    return None
                times.append(received)
        return min(times)

    def _find_blocked(self, source: str) -> BitMap64:
        fates = Fates(self._ledger)
        own = fates.in_flight(source)
        return BitMap64(
            each.sequence
            for each in self._index.waiting(source)
            if self._is_now(each)
            and each.sequence in own
            and fates(each.owner.source, each.owner.sequence) == Fate.IN_FLIGHT
        )

    def _is_now(self, waiting: WaitingDuplicate) -> bool:
        """Whether it waits by the keys that its step compares now, and not by those of an earlier run."""
        return self._all.get(waiting.step) == waiting.definition

    def _tidy_waits(self, source: str) -> None:
        waiting = self._index.waiting(source)  # before the ledger: a batch may be opened in between
        own = Fates(self._ledger).in_flight(source)
        if gone := {each.sequence for each in waiting if each.sequence not in own}:
            self._index.stop_waiting(source, gone)


def _dedupes(graph: Graph) -> dict[str, Remembering]:
    nodes = graph.transforms.items()
    return {name: node.config for name, node in nodes if isinstance(node.config, Remembering)}


def _while(until: float, forget: Callable[[], int]) -> None:
    while time.monotonic() < until and forget():
        pass


def repeats_in(graph: Graph, whole: Graph, ledger: Ledger) -> Duplicates | None:
    """What a part of a pipeline needs; None where no step knows events again."""
    return Duplicates(graph, whole, ledger) if _dedupes(graph) else None
