"""Where rows leave a source's pipeline without being delivered: counted for the ledger, sampled into the log.

The ledger has the totals (see `ledger.departures`). The log of the run gets a line for each step and outcome,
at most every `_EVERY_S`: how many since the last, and one of them by its id where one is known. What a
filter leaves out is known by number only.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from signoff.engine.plan.task_report import ReportKind, TaskReport
from signoff.ledger.outcome import EventId, Outcome, RowOutcome
from signoff.pipeline.secrets import redact

logger = logging.getLogger(__name__)

_EVERY_S = 10.0
_LOGGED = frozenset({Outcome.DROPPED, Outcome.DEAD_LETTERED, Outcome.REFUSED})


def of_counts(counts: Mapping[str, int]) -> list[TaskReport]:
    """What Spark has counted, among what the tasks have said."""
    return [TaskReport(stage, ReportKind.ENDED, number=rows) for stage, rows in counts.items()]


@dataclass
class _Unlogged:
    rows: int = 0
    sample: str = ""
    """One of them, and why."""
    logged_at: float = float("-inf")


class StageCounts:
    """Of one source. Used by the threads that do its batches, and by the one that looks after them."""

    def __init__(
        self, source: str, reasons: Mapping[str, str], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._source, self._reasons, self._now = source, reasons, now
        self._unlogged: dict[tuple[str, Outcome | None], _Unlogged] = {}
        """By stage and outcome; None: filtered, which is what the step is for."""
        self._lock = threading.Lock()

    def filtered(self, results: Iterable[TaskReport]) -> dict[str, tuple[int, str]]:
        """What the steps have left out in a pass, as the ledger takes it."""
        return {
            result.name: (result.number or 0, self._reasons.get(result.name, ""))
            for result in results
            if result.kind == ReportKind.ENDED
        }

    def add(self, outcomes: Sequence[RowOutcome], filtered: Mapping[str, tuple[int, str]]) -> None:
        """Note what was recorded; says it if it is time to."""
        with self._lock:
            for stage, (rows, why) in filtered.items():
                self._note(stage, None, rows, why)
            for outcome in outcomes:
                if outcome.outcome in _LOGGED:
                    event = EventId(self._source, outcome.row.sequence, outcome.row.child)
                    self._note(outcome.stage, outcome.outcome, 1, f"{event}: {redact(outcome.reason)}")
        self.log()

    def _note(self, stage: str, outcome: Outcome | None, rows: int, sample: str) -> None:
        unlogged = self._unlogged.setdefault((stage, outcome), _Unlogged())
        unlogged.rows += rows
        unlogged.sample = unlogged.sample or sample

    def log(self, *, everything: bool = False) -> None:
        """Write what is due, or all there is, to the log."""
        with self._lock:
            for (stage, outcome), unlogged in self._unlogged.items():
                if not unlogged.rows or (self._now() < unlogged.logged_at + _EVERY_S and not everything):
                    continue
                word = "left out" if outcome is None else outcome.value.replace("_", "-")
                level = logging.INFO if outcome is None else logging.WARNING
                many = "1 row" if unlogged.rows == 1 else f"{unlogged.rows} rows"
                logger.log(level, '%s: %s %s at "%s" (%s)', self._source, many, word, stage, unlogged.sample)
                unlogged.rows, unlogged.sample, unlogged.logged_at = 0, "", self._now()
