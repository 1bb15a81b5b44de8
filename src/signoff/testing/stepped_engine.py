"""The engine of a test: the real one, which is given its events step by step and is stopped when it is done.

It runs in the thread that calls it. Between two looks at its queries the script goes on: when all that was
given is taken and nothing more will come of it by itself, the next step is given; after the last one, what is
still open is closed, if the test says so. No step waits for a time of day: the time is the test's.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar

from pyspark.sql import SparkSession

from signoff.engine.batch.interrupts import Interrupts
from signoff.engine.engine import Engine
from signoff.engine.query.base import SourceQuery
from signoff.engine.state_queries.base import StateQuery
from signoff.engine.state_queries.fold_query import FoldQuery
from signoff.engine.state_queries.window_query import WindowQuery
from signoff.errors import EngineError
from signoff.ledger.batch_state import Wait
from signoff.pipeline.graph import Graph
from signoff.pipeline.tests_block import Case, GivenEvents
from signoff.stateful.fold_clock import FoldClock
from signoff.testing.events import Logs

PATIENCE_S = 5.0
"""How long a step that answers "not now" is asked again."""
LONGEST_S = 120.0
"""How long nothing may happen before a test is given up."""
_CALM = 2
"""Looks in a row at which nothing was under way: between two of them the windows' marks are moved on."""


class GivenClock(FoldClock):
    """The time of a test, for folds."""

    is_given: ClassVar[bool] = True

    def __init__(self, now: datetime) -> None:
        self.now = now

    def shift_ms(self, batch: int, time_ms: int) -> int:
        return time_ms - self.now_ms()

    def now_ms(self) -> int:
        return round(self.now.timestamp() * 1000)

    def close(self) -> None:
        """It has no file."""


class ScriptedEngine(Engine):
    """Runs one test."""

    def __init__(self, graph: Graph, case: Case, spark: SparkSession) -> None:
        super().__init__(graph, Interrupts(patience_s=PATIENCE_S), spark)
        self._case = case
        self.clock = GivenClock(case.now)
        self._folds = [state for state in self.states if isinstance(state, FoldQuery)]
        for fold in self._folds:
            fold.clock.close()
            fold.clock = self.clock
        self._logs = Logs(graph)
        self._steps = self._script(case.steps())
        self._calm = 0
        self._seen: tuple[Any, ...] = ()
        self._give_up_at = time.monotonic() + LONGEST_S

    def close(self) -> None:
        self._logs.close()
        super().close()

    def _tend(self) -> None:
        super()._tend()
        if self.control.stopping:
            return
        self._look_out()
        self._tend_states()
        self._calm = self._calm + 1 if all(map(self._is_calm, self.queries.values())) else 0
        if self._calm >= _CALM:
            self._calm = 0
            if next(self._steps, None) is None:
                self.control.stop(0.0)

    def _script(self, steps: Sequence[GivenEvents]) -> Iterator[str]:
        for step in steps:
            self.clock.now += timedelta(seconds=step.after)
            self._logs.append(step.events, self.clock.now)
            yield "given"
        if self._case.at_end == "leave_open":
            return
        while any(self._close_windows()) or any(self._end_groups()):
            yield "closed"

    def _close_windows(self) -> Iterator[bool]:
        for window in (state.intake for state in self.states if isinstance(state, WindowQuery)):
            if window.marks.open_windows:
                window.marks.reach_last_end()
                window.tell()
                yield True

    def _end_groups(self) -> Iterator[bool]:
        for fold in self._folds:
            if (due := fold.next_deadline) is not None:
                self.clock.now = max(
                    self.clock.now, datetime.fromtimestamp(due / 1000 + 1, self.clock.now.tzinfo)
                )
                yield True

    def _is_calm(self, query: SourceQuery) -> bool:
        """All that is in its log is taken, and handed to all that take it; it may wait for what is behind."""
        ledger = self.ledger
        if ledger.books(query.source).next < query.log.head():
            return False
        if isinstance(query, StateQuery) and not query.is_calm:
            return False
        runner = query.runner
        return not any(
            state.to_ask and not (isinstance(who, Wait) and runner.follows(who.step))
            for batch in ledger.open_batches(query.source)
            if not batch.settled
            for who, state in batch.debtors.items()
        )

    def _look_out(self) -> None:
        """Give up where nothing happens at all."""
        seen = tuple(
            (query.log.head(), self.ledger.settled_upto(name)) for name, query in self.queries.items()
        )
        if seen != self._seen:
            self._seen, self._give_up_at = seen, time.monotonic() + LONGEST_S
        if time.monotonic() > self._give_up_at:
            raise EngineError(f"nothing has happened for {LONGEST_S:.0f} s")
