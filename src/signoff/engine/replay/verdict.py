"""What one pass over replayed letters says of each of them. Runs on the driver.

A letter is closed only for what was seen in the pass: a row of it was delivered, or came as far as the step
the letter is of and was then left out by a step behind it. A row that did not come so far, because the
pipeline has changed, was not replayed at all: its letter stays, and says where the row ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from signoff.engine.batch.missing_rows import came_names
from signoff.engine.batch.step_retries import row_of
from signoff.engine.batch.verdict import Round
from signoff.engine.plan.lineage import made_from
from signoff.engine.plan.task_report import ReportKind, TaskReport
from signoff.ledger.letter import MOVED, DeadLetter
from signoff.ledger.outcome import EventId, Outcome, Resolution, RowRef
from signoff.pipeline.graph import Graph

_T = TypeVar("_T")

DELIVERED = "delivered"
DROPPED = "dropped"
"""How the result of a replay begins, as it is kept with the letter."""


@dataclass
class Verdict:
    """What became of replayed letters."""

    resolutions: list[Resolution] = field(default_factory=list)
    further: list[DeadLetter] = field(default_factory=list)
    """New letters, of later stages."""
    handed: dict[tuple[str, ...], list[DeadLetter]] = field(default_factory=dict)
    """By the sinks behind which their rows wait in another log: letters that are not decided yet."""
    delivered: set[tuple[str, str]] = field(default_factory=set)
    """Keys of those letters among them of which something was delivered already."""


@dataclass(frozen=True)
class ReplayReports:
    """What a pass over replayed letters said, besides the sinks' own answers."""

    graph: Graph
    stage: str
    """What the letters are of."""
    results: Sequence[TaskReport]
    anew: bool
    """No rows were asked for by name."""
    observers: frozenset[str] = frozenset()
    """Sinks that only look at what goes by."""

    def came(self) -> dict[str, Mapping[int, list[str]]]:
        """By sink: the rows that came to it."""
        names = {result.name for result in self.results if result.kind == ReportKind.CAME}
        return {name: came_names([r for r in self.results if r.name == name]) for name in names}

    def left_out(self) -> list[tuple[RowRef, str]]:
        """Rows that steps left out, and which."""
        kinds = (ReportKind.LEFT_OUT, ReportKind.DROPPED)
        return [(row_of(r), _by(r)) for r in self.results if r.kind in kinds]

    def reached(self) -> list[RowRef]:
        return [row_of(result) for result in self.results if result.kind == ReportKind.REACHED]


def judge_letters(
    source: str, letters: Sequence[DeadLetter], verdict: Round, reports: ReplayReports
) -> Verdict:
    """Decide on each letter of one stage that was replayed in one pass."""
    failed = _failures(verdict, reports.graph)
    earlier = _earlier(reports, failed)
    own = {letter.event.row: failed.pop((letter.event.row, reports.stage), None) for letter in letters}
    found = Verdict(further=_further(source, letters, failed, reports.anew))
    judge = _Judge(verdict, reports, failed, found.further)
    for letter in letters:
        row = letter.event.row
        failures = earlier.get(row.sequence, ())
        before = (each.why for other, each in failures if made_from(row.child, other.child, each.way))
        why = own[row] or next(before, None)
        if why := why or judge.why_not_there(row):
            found.resolutions.append(_failed(letter, why))
        elif waits := judge.waits_behind(row):
            found.handed.setdefault(waits, []).append(letter)
            if judge.delivered(row):
                found.delivered.add(letter.key)
        else:
            outcome = Outcome.DELIVERED if judge.delivered(row) else Outcome.DROPPED
            result = judge.result(row)
            found.resolutions.append(Resolution(*letter.key, outcome, result, moved=result.startswith(MOVED)))
    return found


class _Judge:
    """What became of the rows of a pass that did not fail at the stage their letters are of, or before."""

    def __init__(
        self,
        verdict: Round,
        reports: ReplayReports,
        failed: Mapping[tuple[RowRef, str], str],
        further: Sequence[DeadLetter],
    ) -> None:
        self._verdict, self._reports, self._failed = verdict, reports, failed
        # By event: there may be thousands of letters, and each asks for its own only.
        self._further = _by_event((letter.event.row, letter) for letter in further)
        self._left_out = _by_event(reports.left_out())
        self._came, self._reached = reports.came(), _by_event((row, row) for row in reports.reached())
        self._handed = {name: handed for name, state in verdict.sinks.items() if (handed := state.handed_on)}

    def why_not_there(self, row: RowRef) -> str | None:
        """Why a row has not come to the stage its letter is of; None if it has."""
        node = self._reports.graph.nodes[self._reports.stage]
        if node.kind == "source" or self._rows(row) or self.delivered(row) or self.waits_behind(row):
            return None
        if any(row.holds(other) or other.holds(row) for other, _ in self._reached.get(row.sequence, ())):
            return None
        if ended := self._ended(row):
            return f"it does not come to {node.label} any more: left out by {ended[0]}"
        return (
            f"it does not come to {node.label} any more: a node in front was renamed, removed or changed "
            "since; undo that and replay it again, or drop it"
        )

    def waits_behind(self, row: RowRef) -> tuple[str, ...]:
        """The sinks behind which rows of it are in another log, and are not settled."""
        return tuple(sorted(sink for sink in self._handed if self._is_behind(sink, row)))

    def _is_behind(self, sink: str, row: RowRef) -> bool:
        """Whether a row of it is in the log behind a sink; where rows are not known by name, of its event."""
        if row.sequence not in self._handed[sink]:
            return False
        if self._reports.anew or not self._came.get(sink, {}).get(row.sequence):
            return True
        return any(
            name == sink and (RowRef(row.sequence, child), sink) not in self._failed
            for name, child in self._rows(row)
        )

    def delivered(self, row: RowRef) -> bool:
        """Whether a sink has taken a row of it."""
        if self._reports.anew:
            return row.sequence in self._verdict.delivered
        return any(
            row.sequence not in self._handed.get(sink, ())
            and (RowRef(row.sequence, child), sink) not in self._failed
            and sink not in self._reports.observers
            for sink, child in self._rows(row)
        )

    def result(self, row: RowRef) -> str:
        """In words."""
        for other, later in self._further.get(row.sequence, ()):
            if row.holds(other):
                return f'{MOVED}: "{later.stage}": {later.reason}'
        if self.delivered(row):
            return DELIVERED
        if ended := self._ended(row):
            return f"{DROPPED} by {ended[0]}"
        late = next((sink for sink, _ in self._rows(row)), None)
        return f'{DROPPED} by "{late}"' if late else f"{DROPPED}: nothing of it was left to deliver"

    def _rows(self, row: RowRef) -> list[tuple[str, str]]:
        """The rows made from it that came to sinks."""
        return [
            (sink, child)
            for sink, names in self._came.items()
            for child in names.get(row.sequence, ())
            if made_from(child, row.child)
        ]

    def _ended(self, row: RowRef) -> list[str]:
        said = self._left_out.get(row.sequence, ())
        return [by for other, by in said if row.holds(other) or other.holds(row)]


def _failed(letter: DeadLetter, reason: str) -> Resolution:
    return Resolution(letter.event_id, letter.stage, Outcome.DEAD_LETTERED, reason)


def _failures(verdict: Round, graph: Graph) -> dict[tuple[RowRef, str], str]:
    """Why rows failed, by row and stage. What a full buffer discards has failed: its letter is there."""
    return {
        (one.row, one.stage): one.reason
        for one in verdict.outcomes
        if one.outcome != Outcome.DROPPED or one.stage in graph.sinks
    }


@dataclass(frozen=True)
class _Failure:
    """A row that failed at a step."""

    why: str
    way: frozenset[str]
    """The step and what is behind it: what was made from the row and came by another way is not concerned."""


def _earlier(
    reports: ReplayReports, failed: dict[tuple[RowRef, str], str]
) -> dict[int, list[tuple[RowRef, _Failure]]]:
    """Take out what failed before the rows could come to the stage: their letters stay as they are."""
    stages = {stage for _, stage in failed}
    behind = {stage: frozenset({stage, *reports.graph.downstream(stage)}) for stage in stages}
    in_front = {stage for stage in stages if stage != reports.stage and reports.stage in behind[stage]}
    found = {key: why for key, why in failed.items() if key[1] in in_front}
    for key in found:
        del failed[key]
    return _by_event(
        (row, _Failure(f'step "{stage}" failed: {why}', behind[stage])) for (row, stage), why in found.items()
    )


def _by_event(found: Iterable[tuple[RowRef, _T]]) -> dict[int, list[tuple[RowRef, _T]]]:
    rows: dict[int, list[tuple[RowRef, _T]]] = {}
    for row, what in found:
        rows.setdefault(row.sequence, []).append((row, what))
    return rows


def _further(
    source: str, letters: Sequence[DeadLetter], failed: Mapping[tuple[RowRef, str], str], anew: bool
) -> list[DeadLetter]:
    """Letters of rows that came further than the letters they were made from, and failed there."""
    asked = _by_event((letter.event.row, letter) for letter in letters)
    found = []
    for (row, stage), reason in failed.items():
        # Else a row beside it, which has a letter of its own, open or closed.
        made_from_it = [letter for one, letter in asked.get(row.sequence, ()) if anew or one.holds(row)]
        if made_from_it:
            event_id = str(EventId(source, row.sequence, row.child))
            origin = made_from_it[-1]
            found.append(
                replace(
                    origin,
                    event_id=event_id,
                    stage=stage,
                    reason=reason,
                    at=0.0,
                    batch="",
                    result="",
                    first_reason=f'at "{origin.stage}": {origin.first_reason or origin.reason}',
                )
            )
    return found


def _by(result: TaskReport) -> str:
    return f'"{result.name}"' + (f" ({result.text})" if result.text else "")
