"""Batches that some sinks still owe: kept aside, and asked for again, while new batches go on.

The place where they wait is the log itself, which keeps everything that is not settled; what is owed by
whom is in the ledger. So nothing is copied, a kill forgets nothing, and the log's size limit is the bound.

Two kinds of waiting for a sink:

    rows       a sink took the others of the batch: they are tried again on their own, and hold up nobody
    a batch    the sink took nothing, it seems to be down: this and all later batches wait for it, in their
               order; only the first of them is tried, the other sinks get theirs as if nothing had happened

Rows that wait for a step (see `step_retries`) are asked for in turns with what sinks owe, the longest due
first. A step that fails for all it was asked for rests before it is asked for anything else, for half the
time these rows wait: so a service that is down costs few tries, and rows that always fail keep no others
from theirs.

What has been due for longest comes first: rows that fail again and again, in however many batches, keep
neither later batches nor other rows from their turn.

A sink that works again is behind. So that it catches up although new batches never end, one new batch
is taken for every `_CATCH_UP` that it has been given.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from signoff.engine.batch.runner import BatchRunner
from signoff.engine.batch.step_retries import due_again
from signoff.ledger.batch_state import BatchState, Debtor, Done, SinkState, Wait
from signoff.sinks.contract import BatchRef

_CATCH_UP = 2
_FEW = 20
"""So many batches may wait before new ones are made larger."""
_SLOWER_S = 0.005
_SLOWEST_S = 2.0
_MOST = 2000
"""More batches than this do not wait: the source is held back instead."""
_COUNT_S = 1.0
_IDLE_S = 0.5
_FOLLOW_S = 0.05
"""How often it is looked whether the events that rows wait for are settled."""


@dataclass
class _Parked:
    batch: BatchRef
    known: BatchState
    due: dict[Debtor, float] = field(default_factory=dict)
    """When a sink is asked again; at once if not said."""


class Backlog:
    """The open batches of one source. `take` is called by one thread, `retry` by another."""

    def __init__(self, runner: BatchRunner) -> None:
        self._runner = runner
        self._parked: dict[int, _Parked] = {}
        """By the batch's start, in order."""
        self._behind: frozenset[str] = frozenset()
        """Sinks for which a whole batch waits."""
        self._changed = threading.Condition()
        self._works: dict[str, bool] = {}
        """Whether a sink that is behind took rows when it was last asked."""
        self._asked: set[str] = set()
        """Sinks that have been given a batch since the run began."""
        self._left_open_upto = 0
        """Where the batches end that an earlier run has left open."""
        self._credits = 0
        self._taken_at = 0.0
        self._asked_at: dict[str, float] = {}
        """When a sink that is behind was last asked for the next batch."""
        self._rests: dict[str, float] = {}
        """By step, until when it is left alone."""
        self._steps_next = False
        self._counted, self._counted_at = 0, float("-inf")
        """Batches that somebody is still to be asked for, and when they were counted."""

    def __len__(self) -> int:
        return len(self._parked)

    # -- for the thread that takes new batches

    def resume(self) -> None:
        """Take over what an earlier run has left open."""
        batches = [known.ref for known in self._runner.ledger.open_batches(self._runner.source)]
        self._runner.tidy(batches)
        self._left_open_upto = max((batch.end for batch in batches), default=0)
        for batch in batches:
            self._park(_Parked(batch, self._runner.open(batch)), ())

    def may_take(self, size: int, most: int) -> bool:
        """Whether a new batch of so many events, of at most so many, should begin now."""
        with self._changed:
            waiting = len(self._parked)
            if self._nobody_takes_it():
                return False  # it stays in the log, and becomes part of a larger batch
            if self._catching_up() and self._credits < _CATCH_UP:
                return False
            if waiting > _FEW and size < most:
                since = time.monotonic() - self._taken_at
                if since < min(waiting * _SLOWER_S, _SLOWEST_S):
                    return False
            return not self._is_full()

    def why_held(self) -> str:
        """Why new batches are not taken, or fewer of them; '' when they are. For whoever looks on."""
        with self._changed:
            if self._nobody_takes_it():
                return self._why_nobody_takes_it()
            if self._is_full():
                return f"{len(self._parked)} batches wait already for {_named(self._owing())}"
            if names := self._catching_up():
                return f"{_named(names)} is catching up: one in three batches is new"
            return ""

    def _why_nobody_takes_it(self) -> str:
        """Nobody is said to have failed who was not asked: a run that was killed leaves batches open."""
        failed = {name for name in self._behind & self._asked if not self._works.get(name)}
        if failed:
            why = f"no sink can take a new batch: {_named(failed)} delivered nothing of an earlier one"
            unasked = self._behind - self._asked
            return why + (f"; not asked yet: {_named(unasked)}" if unasked else "")
        left = sum(
            start < self._left_open_upto
            and any(isinstance(who, str) for who in self._runner.owing(each.known))
            for start, each in self._parked.items()
        )
        if not left:
            return "earlier batches are done first"
        some = "batch" if left == 1 else f"{left} batches"
        return f"the {some} that the last run or engine left open {'is' if left == 1 else 'are'} done first"

    def _is_full(self) -> bool:
        """Whether so many batches wait for sinks or steps. Those that wait for results of a window do not
        count, nor do duplicates of events that do: without new ones it may never be closed."""
        if len(self._parked) < _MOST:
            return False
        if time.monotonic() - self._counted_at > _COUNT_S:
            self._counted_at = time.monotonic()
            self._counted = sum(self._is_to_be_asked(each.known) for each in self._parked.values())
        return self._counted >= _MOST

    def _is_to_be_asked(self, known: BatchState) -> bool:
        return any(not self._runner.blocked(name, state) for name, state in self._runner.owing(known).items())

    def _nobody_takes_it(self) -> bool:
        return bool(self._behind) and self._behind >= self._runner.sinks.keys()

    def _catching_up(self) -> list[str]:
        return [sink for sink in self._behind if self._works.get(sink)]

    def _owing(self) -> set[Debtor]:
        return {name for parked in self._parked.values() for name in self._runner.owing(parked.known)}

    def take(self, batch: BatchRef) -> None:
        """Do the first pass over a new batch; what is then still owed waits here."""
        with self._changed:
            behind = self._behind
            self._credits = 0
        self._taken_at = time.monotonic()
        known = self._runner.open(batch)
        asked = {name: state for name, state in self._runner.owing(known).items() if name not in behind}
        if not known.settled:
            parked = _Parked(batch, known)
            if asked or not self._runner.owing(known):
                self._round(parked, asked)
            if not parked.known.settled:
                self._park(parked, asked)

    # -- for the thread that asks again

    def retry(self) -> None:
        """Ask again what is due, oldest first; waits a moment when nothing is."""
        with self._changed:
            found = self._due()
            if found is None:
                self._changed.wait(self._pause_s())
                # A round that ended as the answer came may have put what it knew in the answer's place.
                waiting = (each for each in self._parked.values() if self._runner.waits_elsewhere(each.known))
                looked_at = list(islice(waiting, _FEW))
                self._refresh(looked_at)
                for each in looked_at:
                    self._runner.waits.see_patience(each.known)
                return
        parked, names = found
        parked.known = self._runner.open(parked.batch)  # something may have expired meanwhile
        asked = {who: state for who in names if not (state := _of(parked.known, who)).done}
        behind = [who for who, state in asked.items() if isinstance(who, str) and state.wants_all]
        if not parked.known.settled:
            self._round(parked, asked)
        with self._changed:
            blocked = (
                who for who, state in asked.items() if isinstance(who, str) and self._blocks(who, state)
            )
            self._asked_at |= dict.fromkeys(blocked, time.monotonic())
            self._let_rest(parked, asked)
            self._asked.update(name for name in asked if isinstance(name, str))
            for name in behind:
                self._works[name] = not _of(parked.known, name).wants_all
                self._credits += self._works[name]
            if parked.known.settled:
                self._parked.pop(parked.batch.start, None)
            self._note_behind()

    def look_again(self, start: int) -> None:
        """Something of a batch was settled elsewhere."""
        with self._changed:
            if (parked := self._parked.get(start)) is not None:
                self._refresh([parked])

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    # -- behind them

    def _refresh(self, some: Iterable[_Parked]) -> None:
        for parked in some:
            parked.known = self._runner.open(parked.batch)
            if parked.known.settled:
                self._parked.pop(parked.batch.start, None)
        self._note_behind()

    def _round(self, parked: _Parked, asked: dict[Debtor, SinkState]) -> None:
        began = time.monotonic()
        known = self._runner.round(parked.batch, parked.known, asked)
        wait_s = partial(self._runner.waits.wait_s, parked.batch, took_s=time.monotonic() - began)
        owing = self._runner.owing(known)
        due = {name: at for name, at in parked.due.items() if name in owing}
        parked.due = due | due_again(owing, asked, due, wait_s)
        parked.known = known

    def _let_rest(self, parked: _Parked, asked: dict[Debtor, SinkState]) -> None:
        for wait, before in asked.items():
            if isinstance(wait, Wait) and not self._runner.follows(wait.step):
                after, now = _of(parked.known, wait), time.monotonic()
                failed = not after.done and after.wanted_rows == before.wanted_rows
                self._rests[wait.step] = (now + parked.due.get(wait, now)) / 2 if failed else 0.0

    def _park(self, parked: _Parked, asked: Iterable[Debtor]) -> None:
        with self._changed:
            self._parked[parked.batch.start] = parked
            sinks = {name for name in asked if isinstance(name, str)}
            self._asked |= sinks
            self._works |= {name: False for name in sinks if _of(parked.known, name).wants_all}
            self._note_behind()

    def _note_behind(self) -> None:
        self._behind = frozenset(
            name
            for parked in self._parked.values()
            for name, state in self._runner.owing(parked.known).items()
            if isinstance(name, str) and self._blocks(name, state)
        )
        self._changed.notify_all()

    def _due(self) -> tuple[_Parked, Sequence[Debtor]] | None:
        """A batch, and whom to ask for it now: some of its sinks, or a step."""
        now = time.monotonic()
        self._steps_next = not self._steps_next
        if self._steps_next:
            return self._due_step(now) or self._due_sinks(now)
        return self._due_sinks(now) or self._due_step(now)

    def _due_step(self, now: float) -> tuple[_Parked, list[Wait]] | None:
        due = [
            (parked.due.get(wait, 0.0), parked, wait)
            for parked in self._parked.values()
            for wait, state in self._runner.owing(parked.known).items()
            if isinstance(wait, Wait)
            and max(parked.due.get(wait, 0.0), self._rests.get(wait.step, 0.0)) <= now
            and not self._runner.blocked(wait, state)
        ]
        if not due:
            return None
        _, first, longest = min(due, key=lambda one: one[0])
        return first, [wait for _, parked, wait in due if parked is first and wait.step == longest.step]

    def _due_sinks(self, now: float) -> tuple[_Parked, list[str]] | None:
        """What has been due for longest. Of a sink that is behind only the first batch is due."""
        passed: set[str] = set()
        due: list[tuple[float, _Parked, list[str]]] = []
        for parked in self._parked.values():
            owing = self._runner.owing(parked.known)
            turns = {
                name: turn
                for name, state in owing.items()
                if isinstance(name, str)
                and not (self._blocks(name, state) and name in passed)
                and (turn := self._turn(parked, name, state)) <= now
            }
            if not (owing or self._runner.waits_elsewhere(parked.known)):
                return parked, []
            if turns:
                due.append((min(turns.values()), parked, list(turns)))
            passed |= {
                name for name, state in owing.items() if isinstance(name, str) and self._blocks(name, state)
            }
        if not due:
            return None
        _, parked, names = min(due, key=lambda one: one[0])
        return parked, names

    def _turn(self, parked: _Parked, name: str, state: SinkState) -> float:
        """Since when a sink may be asked for what it owes of a batch. If it is behind, since it was asked for
        the batch before: else all batches that it lacks would come before what waits meanwhile."""
        due = parked.due.get(name, 0.0)
        return max(due, self._asked_at.get(name, 0.0)) if self._blocks(name, state) else due

    def _blocks(self, name: str, state: SinkState) -> bool:
        """Whether later batches wait for what a sink owes of this one."""
        return state.wants_all or name in self._runner.ordered

    def _pause_s(self) -> float:
        soonest = time.monotonic() + _IDLE_S
        for parked in self._parked.values():
            for who, due in parked.due.items():
                if isinstance(who, Wait):
                    due = max(due, self._rests.get(who.step, 0.0))
                    if self._runner.follows(who.step):  # it is due when another event is settled
                        due = max(due, time.monotonic() + _FOLLOW_S)
                soonest = min(soonest, due)
        return max(soonest - time.monotonic(), 0.001)


def _named(debtors: Iterable[Debtor]) -> str:
    """Sinks, and steps that rows wait for, as one says them."""
    found = set(debtors)
    steps = sorted({wait.step for wait in found if isinstance(wait, Wait)})
    sinks = sorted(name for name in found if isinstance(name, str))
    return " and ".join(_several(kind, some) for kind, some in (("sink", sinks), ("step", steps)) if some)


def _several(kind: str, names: list[str]) -> str:
    return f"{kind}{'s' if len(names) > 1 else ''} " + ", ".join(f'"{name}"' for name in names)


def _of(known: BatchState, who: Debtor) -> SinkState:
    """How far one is with a batch; of a batch that is settled the ledger may have forgotten it."""
    found = known.waits.get(who) if isinstance(who, Wait) else known.sinks.get(who)
    return found or Done()
