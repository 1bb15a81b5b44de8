"""Bringing back what became of results to the rows they were made of. Runs on the driver.

With `acknowledge: delivered` the rows in front of the state stay owed, and with them the events they stand
for, until the result they went into is settled. A row of a window belongs to the results that have its window
and keys and were given out by the batch it came with, or a later one; the first of them settles it. The
result of a fold names its rows. Rows that came while a step was configured so wait also when it is no more.
"""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pyroaring import BitMap64

from signoff.batch import BatchRef
from signoff.engine.feedback.links import LedgerOutcomes
from signoff.engine.query.base import SourceQuery
from signoff.engine.split.boundaries import buffer_place
from signoff.engine.split.division import all_boundaries
from signoff.engine.split.stateful import FoldBoundary, StatefulBoundary, WindowBoundary
from signoff.errors import SignoffError
from signoff.ledger.batches import HandedOnOutcome
from signoff.ledger.ledger import Ledger
from signoff.ledger.outcome import RowOutcome, RowRef
from signoff.ledger.sequences import from_range
from signoff.link.handover import origins_of
from signoff.link.notes import Handed, LinkNotes
from signoff.log import LogReader
from signoff.pipeline.graph import Graph
from signoff.pipeline.secrets import redact
from signoff.transforms.window.partial import START
from signoff.transforms.window.step import WINDOW_START

logger = logging.getLogger(__name__)

_NOTHING = 2**62
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def build_result_feedback(
    graph: Graph, ledger: Ledger, queries: Mapping[str, SourceQuery]
) -> list[ResultsFeedback]:
    """One for each step that keeps state."""
    found: list[ResultsFeedback] = []
    for part, boundary in all_boundaries(graph):
        if isinstance(boundary, StatefulBoundary):
            if (kind := _FEEDBACK.get(type(boundary))) is None:
                continue  # nothing waits for its results
            feedback = kind(part, boundary, ledger, queries)
            queries[boundary.results.source].needed_elsewhere.append(feedback.needed_from)
            found.append(feedback)
    return found


class ResultsFeedback(ABC):
    """Brings the answers of one step's results to the rows in front of its state."""

    def __init__(
        self, graph: Graph, boundary: StatefulBoundary, ledger: Ledger, queries: Mapping[str, SourceQuery]
    ) -> None:
        results = boundary.results
        self._source, self._sink = boundary.source, results.sink
        self._ledger, self._queries = ledger, queries
        self._notes = LinkNotes(buffer_place(graph, results.source).database)
        self._rows_log = LogReader(buffer_place(graph, boundary.source).log)
        self._results_log = LogReader(buffer_place(graph, results.source).log)
        self._answers = LedgerOutcomes(ledger, results.source)
        self._loaded: dict[int, int] = {}
        """The batches whose rows wait: where each begins and ends."""
        self._told = BitMap64()
        """Results that the rows have been told of."""
        self._seen: tuple[int, int] | None = None
        self._trouble = ""

    def tend(self) -> None:
        """Bring what is new; cheap when nobody has written. What cannot be brought now is tried again."""
        version = (self._ledger.version(), self._notes.version())
        if version == self._seen:
            return
        try:
            whole = self._bring_all()
            self._trouble = ""
        except SignoffError as error:
            whole = False
            self._forget_waiting()  # of some it may be taken that they were told
            if (text := redact(str(error))) != self._trouble:
                logger.warning(
                    'outcomes of the results of "%s" cannot be reported to their sources: %s',
                    self._sink,
                    text,
                )
            self._trouble = text
        self._seen = version if whole else None

    def _bring_all(self) -> bool:
        """False when it must be tried again although nothing may have changed."""
        settled, whole, head, loaded = self._answers.settled(), True, self._results_log.head(), False
        for handed in self._notes.each():
            mine = settled & from_range(handed.first, handed.last)
            new = mine - self._told
            if handed.last > head or (new and not self._is_recorded(handed)):
                whole = False
                continue
            if new:
                if not loaded:  # of many that may wait: only when there is something to tell
                    self._load()
                    loaded = True
                if self._loaded:
                    self._bring(handed, new)
                self._told |= new
            if len(mine) == handed.last - handed.first:
                if self._comes_again(handed):
                    whole = False
                    continue
                self._notes.forget(handed)
                self._told -= mine
        return whole

    def needed_from(self) -> int:
        """The results' log is read from here on."""
        return min((handed.first for handed in self._notes.each()), default=_NOTHING)

    def tidy(self) -> None:
        """Nothing of its own to remove."""

    def close(self) -> None:
        self._notes.close()

    def _comes_again(self, handed: Handed) -> bool:
        """Whether its results must be recognised, because they may be handed on once more."""
        query = self._queries.get(self._source)
        return query is not None and query.comes_again(handed.batch)

    def _is_recorded(self, handed: Handed) -> bool:
        """Whether the ledger knows that the batch's rows wait for results."""
        batch = handed.batch
        if batch.start == batch.end:
            return True
        known = self._ledger.batch(batch.source, batch.start, batch.end)
        if known is None:
            return False
        state = known.sinks.get(self._sink)
        return known.settled or (state is not None and (state.done or state.handed_on is not None))

    def _forget_waiting(self) -> None:
        """Which rows wait is read from the ledger again, which knows who was told."""
        self._loaded.clear()

    def _load(self) -> None:
        """Read which rows wait, of batches that are new."""
        open_batches = self._ledger.open_batches(self._source)
        for known in open_batches:
            state = known.sinks.get(self._sink)
            if known.ref.start in self._loaded or state is None or not state.handed_on:
                continue
            self._loaded[known.ref.start] = known.ref.end
            self._wait(known.ref, state.handed_on)
        still = {known.ref.start for known in open_batches}
        self._loaded = {start: end for start, end in self._loaded.items() if start in still}

    def _bring(self, handed: Handed, new: BitMap64) -> None:
        delivered = self._answers.delivered(handed.first, handed.last)
        exceptions: dict[int, list[RowOutcome]] = {}
        for outcome in self._answers.exceptions(handed.first, handed.last):
            exceptions.setdefault(outcome.row.sequence, []).append(outcome)
        rows, taken, outcomes = BitMap64(), BitMap64(), list[RowOutcome]()
        for number, mine in self._members(handed, new):
            rows |= BitMap64(mine)
            if number in delivered:
                taken |= BitMap64(mine)
            outcomes += [
                replace(one, row=RowRef(row, one.row.child))
                for one in exceptions.get(number, ())
                for row in mine
            ]
        self._release(rows, taken, outcomes)

    def _release(self, rows: BitMap64, taken: BitMap64, outcomes: Sequence[RowOutcome]) -> None:
        query = self._queries.get(self._source)
        for start, end in self._loaded.items():
            mine = rows & from_range(start, end)
            if not mine:
                continue
            own = [outcome for outcome in outcomes if outcome.row.sequence in mine]
            answer = HandedOnOutcome(mine, BitMap64(), taken & mine, own)
            self._ledger.release(self._source, start, end, self._sink, answer)
            if query is not None:
                query.look_again(start)

    @abstractmethod
    def _wait(self, batch: BatchRef, rows: BitMap64) -> None:
        """These rows of a batch wait from now on."""

    @abstractmethod
    def _members(self, handed: Handed, new: BitMap64) -> Iterator[tuple[int, Sequence[int]]]:
        """For each of the new results, which are of one batch: the rows that went into it."""


class WindowFeedback(ResultsFeedback):
    """Of a window, whose results and rows have the same window and keys."""

    def __init__(
        self, graph: Graph, boundary: StatefulBoundary, ledger: Ledger, queries: Mapping[str, SourceQuery]
    ) -> None:
        super().__init__(graph, boundary, ledger, queries)
        assert isinstance(boundary, WindowBoundary)
        self._keys = boundary.window.keys
        self._waiting: dict[str, list[int]] = {}
        """By window and keys, the rows that wait for a result."""

    def _forget_waiting(self) -> None:
        super()._forget_waiting()
        self._waiting.clear()

    def _wait(self, batch: BatchRef, rows: BitMap64) -> None:
        for number, row in self._read(self._rows_log, batch.start, batch.end):
            if number in rows:
                self._waiting.setdefault(self._key(row[START], row), []).append(number)

    def _members(self, handed: Handed, new: BitMap64) -> Iterator[tuple[int, Sequence[int]]]:
        for number, result in self._read(self._results_log, handed.first, handed.last):
            if number not in new:
                continue
            key = self._key(_micros(result[WINDOW_START]), result)
            waiting = self._waiting.pop(key, [])
            yield number, [row for row in waiting if row < handed.batch.end]
            if left := [row for row in waiting if row >= handed.batch.end]:
                self._waiting[key] = left

    def _key(self, start: int, row: Mapping[str, object]) -> str:
        return json.dumps([start, *(row.get(name) for name in self._keys)])

    @staticmethod
    def _read(log: LogReader, start: int, end: int) -> Iterator[tuple[int, dict[str, Any]]]:
        for first, events in log.read(start, end, ["payload"]):
            for place, payload in enumerate(events.column("payload").to_pylist()):
                yield first + place, json.loads(payload, parse_float=_number)


class FoldFeedback(ResultsFeedback):
    """Of a fold: each result says which rows went into it."""

    def _wait(self, batch: BatchRef, rows: BitMap64) -> None:
        pass

    def _members(self, handed: Handed, new: BitMap64) -> Iterator[tuple[int, Sequence[int]]]:
        for first, events in self._results_log.read(handed.first, handed.last, ["position", "headers"]):
            members: dict[int, list[int]] = {}
            for place, row in zip(*(numbers.tolist() for numbers in origins_of(events)), strict=True):
                members.setdefault(first + place, []).append(row)
            yield from ((number, rows) for number, rows in members.items() if number in new)


_FEEDBACK: Mapping[type[StatefulBoundary], type[ResultsFeedback]] = {
    WindowBoundary: WindowFeedback,
    FoldBoundary: FoldFeedback,
}


def _number(text: str) -> str:
    """Numbers with a point as they are written, in rows and results alike: as floats two decimals might be
    one. Spark makes one group of 0.0 and -0.0."""
    return "0.0" if text == "-0.0" else text


def _micros(text: str) -> int:
    return (datetime.fromisoformat(text) - _EPOCH) // timedelta(microseconds=1)
