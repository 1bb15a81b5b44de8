"""Bringing back what became of rows that were handed on to another log. Runs on the driver.

A batch that was handed on stays open in the ledger, and owes nobody anything but the answer. The answers are
read where the rows are settled: for a buffer in the ledger itself, for another pipeline in the link's notes.
All of it may be repeated: an answer that is known already changes nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
from pyroaring import BitMap64

from signoff.engine.batch.letters import to_store
from signoff.engine.batch.verdict import BY_POLICY
from signoff.engine.feedback.replays import give_back, letters_of, tell_letters
from signoff.engine.plan.lineage import joined
from signoff.engine.query.base import SourceQuery
from signoff.engine.replay.batch_name import is_of_letters, replay_name
from signoff.engine.split.boundaries import buffer_place
from signoff.engine.split.division import all_boundaries, buffers_on_disk
from signoff.engine.split.stateful import ResultsBoundary
from signoff.errors import SignoffError
from signoff.ledger.batch_state import BatchState
from signoff.ledger.batches import HandedOnOutcome
from signoff.ledger.dead_letters import DeadLetters
from signoff.ledger.ledger import Ledger
from signoff.ledger.letter import DeadLetter
from signoff.ledger.outcome import BUFFER, OTHERS, EventId, Outcome, RowOutcome, RowRef
from signoff.ledger.sequences import from_numpy, from_range
from signoff.link.handover import HandoverConfig, Numbers, origins_of
from signoff.link.notes import Handed, LinkNotes
from signoff.log import LogReader, trim
from signoff.pipeline.graph import Graph
from signoff.pipeline.secrets import redact
from signoff.sinks.contract import BatchRef

logger = logging.getLogger(__name__)

_NOTHING = 2**62
_LOOK_AGAIN_S = 1.0
UNHEARD = "what became of its replayed row behind this sink cannot be found out; it may have been delivered"
_ENDED = frozenset({Outcome.DEAD_LETTERED, Outcome.REFUSED, Outcome.DROPPED})


class OutcomesDownstream(Protocol):
    """What is known, on the other side, of the rows of a link; by their numbers in its log."""

    def settled(self) -> BitMap64: ...
    def delivered(self, first: int, last: int) -> BitMap64: ...
    def exceptions(self, first: int, last: int) -> list[RowOutcome]: ...


class LedgerOutcomes:
    """Of a buffer: its rows are the events of a source of the same pipeline."""

    def __init__(self, ledger: Ledger, source: str) -> None:
        self._ledger, self._source = ledger, source
        self._change = 0
        self._settled = BitMap64()

    def settled(self) -> BitMap64:
        self._change, found = self._ledger.settlements(self._source, self._change)
        for part in found:
            self._settled |= part.settled
        return self._settled

    def delivered(self, first: int, last: int) -> BitMap64:
        return self._ledger.delivered(self._source, first, last)

    def exceptions(self, first: int, last: int) -> list[RowOutcome]:
        found = self._ledger.exceptions(self._source, first, last)
        return [self._with_letter(outcome) for outcome in found if outcome.outcome in _ENDED]

    def _with_letter(self, outcome: RowOutcome) -> RowOutcome:
        """It names the letter that stands for it, here or further behind."""
        if outcome.outcome != Outcome.DEAD_LETTERED or outcome.letter:
            return outcome
        return replace(outcome, letter=str(EventId(self._source, outcome.row.sequence, outcome.row.child)))


class PipelineOutcomes:
    """Of another pipeline: it notes what it has settled. What it refuses is refused as by any sink."""

    def __init__(self, notes: LinkNotes, stage: str, outcome: Outcome) -> None:
        self._notes, self._stage, self._outcome = notes, stage, outcome

    def settled(self) -> BitMap64:
        return self._notes.settled()

    def delivered(self, first: int, last: int) -> BitMap64:
        found = self._notes.answered(first, last)
        return found.settled - BitMap64(found.refused)

    def exceptions(self, first: int, last: int) -> list[RowOutcome]:
        return [
            RowOutcome(RowRef(sequence), self._stage, self._outcome, reason, transient)
            for sequence, (reason, transient) in self._notes.answered(first, last).refused.items()
        ]


def build_link_feedback(
    graph: Graph,
    parts: Sequence[Graph],
    ledger: Ledger,
    queries: Mapping[str, SourceQuery],
    letters: DeadLetters | None = None,
) -> list[LinkFeedback]:
    """One for each link of a pipeline, which is run in these parts. `letters`: those that are replayed."""
    found: list[LinkFeedback] = []
    for part, boundary in all_boundaries(graph):
        if isinstance(boundary, ResultsBoundary):
            continue  # answered otherwise: see `signoff.engine.feedback.results`
        config = boundary.handover(part)
        notes = LinkNotes(config.place.database)
        feedback = LinkFeedback(
            config, ledger, notes, LedgerOutcomes(ledger, boundary.source), queries, outside=False
        )
        queries[boundary.source].needed_elsewhere.append(feedback.needed_from)
        found.append(feedback)
    in_use = {boundary.name for _, boundary in all_boundaries(graph)}
    found += [
        left_behind(graph, name, ledger, queries) for name in buffers_on_disk(graph) if name not in in_use
    ]
    for part in parts:
        for name, node in part.sinks.items():
            link = node.config
            if isinstance(link, HandoverConfig) and link.outside:
                notes = LinkNotes(link.place.database)
                answers = PipelineOutcomes(notes, name, BY_POLICY[link.on_failure])
                found.append(LinkFeedback(link, ledger, notes, answers, queries, outside=True))
    for feedback in found:
        feedback.letters = letters
    return found


def left_behind(
    graph: Graph,
    name: str,
    ledger: Ledger,
    queries: Mapping[str, SourceQuery],
    letters: DeadLetters | None = None,
) -> LinkFeedback:
    """For a buffer that is in the pipeline no more: what is settled in it may not have been told."""
    place = buffer_place(graph, name + BUFFER)
    config = HandoverConfig(place=place, sink=name, max_bytes=1, when_full="block", awaited_by=frozenset())
    answers = LedgerOutcomes(ledger, name + BUFFER)
    feedback = LinkFeedback(config, ledger, LinkNotes(place.database), answers, queries, outside=False)
    feedback.letters = letters
    return feedback


class LinkFeedback:
    """Brings the answers of one link to the batches whose rows it holds."""

    def __init__(
        self,
        config: HandoverConfig,
        ledger: Ledger,
        notes: LinkNotes,
        answers: OutcomesDownstream,
        queries: Mapping[str, SourceQuery],
        *,
        outside: bool,
    ) -> None:
        self._config, self._ledger, self._notes, self._answers = config, ledger, notes, answers
        self._queries, self._outside = queries, outside
        self.letters: DeadLetters | None = None
        """Where letters are kept whose replay the link may hold."""
        self._log = LogReader(config.place.log)
        self._brought: dict[tuple[str, str, int, int], int] = {}
        """How many rows were settled when their batch was last told."""
        self._seen: tuple[int, int] | None = None
        self._trouble = ""
        self._again_at = float("inf")
        """When to look again although nobody has written."""
        self._looked = False
        """Whether letters whose rows are not in the log were looked for."""

    def tend(self) -> None:
        """Bring what is new; cheap when nobody has written. What cannot be brought now is tried again."""
        version = (self._ledger.version(), self._notes.version())
        if version == self._seen and time.monotonic() < self._again_at:
            return
        self._again_at = float("inf")
        try:
            settled, whole = self._answers.settled(), True
            self._give_back_unheard()
            for parts in self._by_batch():
                rest = self._without_replays(parts, settled)
                whole &= not rest or self._bring(rest, settled)
            self._trouble = ""
        except SignoffError as error:
            whole = False
            if (text := redact(str(error))) != self._trouble:
                logger.warning(
                    'outcomes of the rows of "%s" cannot be reported to their sources: %s',
                    self._config.sink,
                    text,
                )
            self._trouble = text
        self._seen = version if whole else None

    def _give_back_unheard(self) -> None:
        """At the start: letters that wait here, and of whose rows the link knows nothing. They may be of a
        backup, or the link was taken over; nobody would ever hear."""
        if self._looked or self.letters is None:
            return
        handed = self.letters.list(statuses=("handed",), brief=True)
        mine = [letter for letter in handed if self._config.sink in letter.handed]
        noted = {(each.batch.source, replay_name(each.batch)) for each in self._notes.each()}
        for letter in mine:  # one that was told meanwhile is not given back
            if (letter.source, letter.batch) not in noted:
                give_back(self._ledger, self.letters, letter, self._config.sink, UNHEARD)
        self._looked = True

    def needed_from(self) -> int:
        """The link's log is read from here on, to bring the answers that are missing."""
        return min((handed.first for handed in self._notes.each()), default=_NOTHING)

    def tidy(self) -> None:
        """Remove from a link to another pipeline what that has settled."""
        if self._outside:
            trim(self._config.place.log, min(self._notes.answered_upto(), self.needed_from()))

    def close(self) -> None:
        self._notes.close()

    def _by_batch(self) -> list[list[Handed]]:
        """What is in the log, by the batch it is of: rows that had to wait for a step come on their own."""
        head = self._log.head()
        found: dict[tuple[str, str, int, int], list[Handed]] = {}
        for handed in self._notes.each():
            if handed.last <= head:  # the last one may only be about to come
                batch = handed.batch
                found.setdefault((handed.sink, batch.source, batch.start, batch.end), []).append(handed)
        return list(found.values())

    def _without_replays(self, parts: list[Handed], settled: BitMap64) -> list[Handed]:
        """Tell replayed letters what became of their rows; returns the parts that are of no replay."""
        if self.letters is None:
            return parts
        rest = [part for part in parts if not part.batch.replay]
        replays: dict[BatchRef, list[Handed]] = {}
        for part in parts:
            if part.batch.replay:
                replays.setdefault(part.batch, []).append(part)
        for batch, some in replays.items():
            if of_batch := letters_of(self.letters, some[0]):
                self._tell(self.letters, of_batch, some, settled)
            elif not is_of_letters(batch):
                rest += some
            elif all(settled.range_cardinality(x.first, x.last) == x.last - x.first for x in some):
                self._forget(some)  # their letters are replayed as another batch, or not at all
        return rest

    def _tell(
        self, letters: DeadLetters, of_batch: Sequence[DeadLetter], parts: list[Handed], settled: BitMap64
    ) -> None:
        """Tell the letters of one replay. It has several parts if it was killed, and had other rows then."""
        answer = self._together([self._answer(part, settled) for part in parts], at_once=False)
        if tell_letters(self._ledger, letters, of_batch, parts[0], answer, outside=self._outside):
            self._again_at = min(self._again_at, time.monotonic() + _LOOK_AGAIN_S)
        elif not answer.still:
            self._forget(parts)

    def _bring(self, parts: list[Handed], settled: BitMap64) -> bool:
        """Tell a batch; false when it must be tried again although nothing may have changed."""
        batch, sink = parts[0].batch, parts[0].sink
        number = sum(int(settled.range_cardinality(part.first, part.last)) for part in parts)
        key = (sink, batch.source, batch.start, len(parts))
        if self._brought.get(key) == number:
            return True
        known = self._ledger.batch(batch.source, batch.start, batch.end)
        whole = number == sum(part.last - part.first for part in parts)
        if known is None:  # of a replayed letter: nobody waits, it is kept to be recognised if it comes again
            if whole:
                self._forget(parts)
            return True
        query = self._queries.get(batch.source)
        at_once = query is not None and query.runner.fail_fast
        answer = self._together([self._answer(part, settled) for part in parts], at_once)
        if query is not None and self._outside:
            self._store_letters(query, known, sink, answer)
        state = self._ledger.release(batch.source, batch.start, batch.end, sink, answer)
        if state is None:
            return False  # the batch is in the log, but the ledger does not know it yet
        self._brought[key] = number
        if query is not None:
            query.look_again(batch.start)
        if state.handed_on:
            return True
        self._brought.pop(key)
        waiting = BitMap64() if known.settled else self._waiting(known, sink)
        if kept := [part for part in parts if part.origins & waiting]:
            # Rows of these that wait for a step may be in the log; whether the ledger knows is not known.
            self._again_at = min(self._again_at, time.monotonic() + _LOOK_AGAIN_S)
        self._forget(part for part in parts if part not in kept)
        return True

    @staticmethod
    def _waiting(known: BatchState, sink: str) -> BitMap64:
        """The events of which rows wait for a step before the sink can get them, as far as is recorded."""
        waits = (state for wait, state in known.waits.items() if wait.sink == sink)
        return BitMap64.union(BitMap64(), *(state.owes(known.owed) for state in waits))

    def _forget(self, parts: Iterable[Handed]) -> None:
        for part in parts:
            self._notes.forget(part)

    def _store_letters(
        self, query: SourceQuery, known: BatchState, sink: str, answer: HandedOnOutcome
    ) -> None:
        """What another pipeline refused is stored before its event is settled; once, while it is owed."""
        handed = known.sinks[sink].handed_on if sink in known.sinks else None
        dead = [outcome for outcome in answer.outcomes if outcome.outcome == Outcome.DEAD_LETTERED]
        dead = to_store(dead, known.owed & (handed or BitMap64()))
        query.runner.letters.store(dead, query.shared.control)

    @staticmethod
    def _together(answers: Sequence[HandedOnOutcome], at_once: bool) -> HandedOnOutcome:
        """Of an event with rows in several parts nothing is said before the last of them is settled."""
        still = BitMap64.union(BitMap64(), *(answer.still for answer in answers))
        return HandedOnOutcome(
            BitMap64.union(BitMap64(), *(answer.asked for answer in answers)),
            still,
            BitMap64.union(BitMap64(), *(answer.delivered for answer in answers)),
            [one for answer in answers for one in answer.outcomes if one.row.sequence not in still],
            at_once,
        )

    def _answer(self, handed: Handed, settled: BitMap64) -> HandedOnOutcome:
        first, last, asked = handed.first, handed.last, handed.origins
        rows = from_range(first, last)
        if not settled & rows:
            return HandedOnOutcome(asked, asked, BitMap64())
        delivered = self._answers.delivered(first, last) & settled
        outcomes = self._outcomes(handed)
        if not outcomes and rows == delivered & rows:
            return HandedOnOutcome(asked, BitMap64(), asked)
        numbers, origins = self._origins(first, last)
        still = from_numpy(origins[~_among(numbers, settled & rows)])
        taken = from_numpy(origins[_among(numbers, delivered & rows)])
        return HandedOnOutcome(asked, still, taken, outcomes)

    def _origins(self, first: int, last: int) -> tuple[Numbers, Numbers]:
        """For each event that rows of a range were made from: the number of the row, and its own."""
        found = [
            (start + places, origins)
            for start, events in self._log.read(first, last, ["position", "headers"])
            for places, origins in [origins_of(events)]
        ]
        return np.concatenate([rows for rows, _ in found]), np.concatenate([events for _, events in found])

    def _outcomes(self, handed: Handed) -> list[RowOutcome]:
        """What did not simply end well, as outcomes of the events the rows were made from."""
        found = self._answers.exceptions(handed.first, handed.last)
        events = self._log.lookup(outcome.row.sequence for outcome in found)
        outcomes = []
        for one in found:
            event = events[one.row.sequence]
            made = EventId.parse(event["message_id"])
            child = joined(made.child, one.row.child)
            others = dict(event["headers"] or {}).get(OTHERS, "")
            sequences = (event["position"], *(int(number) for number in others.split(",") if number))
            outcomes += [replace(one, row=RowRef(sequence, child)) for sequence in sequences]
        return outcomes


def _among(numbers: Numbers, chosen: BitMap64) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.isin(numbers, np.frombuffer(chosen.to_array(), np.uint64).astype(np.int64))
