"""One micro-batch from the log to settled: the heart of the engine. Runs on the driver.

    open in the ledger ─► one pass over the rows ─► dead letters stored ─► sinks committed ─► recorded
                              ▲                                                                │
                              └──── after a wait, for the sinks and rows still owed ◄──────────┘

The order is the promise. A dead letter is durable before its origin counts as settled; a sink has
signed, or committed, before the ledger says so; the source hears of it only from the ledger. A kill
between any two steps leads to the same range being done again, and every step can be repeated.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyroaring import BitMap64

from signoff.engine.batch.letters import LetterStore, to_store
from signoff.engine.batch.missing_rows import (
    Way,
    came_names,
    came_to,
    left_out_before,
    lettered,
    not_coming,
    not_let_through,
    owed_by_gone,
    stood_for,
)
from signoff.engine.batch.passes import Passes, Work
from signoff.engine.batch.publishing import numbers_of_sinks, numbers_of_waits
from signoff.engine.batch.stage_counts import StageCounts
from signoff.engine.batch.step_retries import (
    Wanted,
    add_waits,
    by_event,
    fails_by_itself,
    on_the_way,
    only_open,
    relevant,
    row_of,
    take_over,
    waiting_for,
)
from signoff.engine.batch.verdict import Final, Round, ask_for_new_rows, judge, note_split
from signoff.engine.batch.waits import Waits
from signoff.engine.delivery.receipts import (
    receipts_directory,
    remove_receipts,
    remove_stray_receipts,
)
from signoff.engine.delivery.sink_pass import Carried
from signoff.engine.plan.duplicates import Duplicates
from signoff.engine.plan.task_report import ReportKind, TaskReport
from signoff.errors import Discarded, PermanentError, SinkError
from signoff.ledger.batch_state import (
    REMOVED,
    BatchState,
    Debtor,
    Done,
    SinkState,
    Untried,
    Wait,
    sink_of,
)
from signoff.ledger.ledger import Ledger
from signoff.ledger.outcome import Outcome, RowRef
from signoff.log import excluded
from signoff.pipeline.model import OnFailure
from signoff.pipeline.secrets import redact
from signoff.sinks.contract import BatchRef
from signoff.stateful.window_sinks import LATENESS, STATE

if TYPE_CHECKING:
    from signoff.engine.batch.traces import BatchTraces

logger = logging.getLogger(__name__)

WAITS = "earlier batches come first"
"""Why a sink that is behind was not asked."""
GONE = 'sink "{}" is not in the pipeline any more{}; put it back to replay this, or drop it'
"""Why a row is a dead letter that was owed to a sink which was renamed or removed."""


@dataclass
class BatchRunner:
    """Does the batches of one source. Two threads may do a round each, of different batches."""

    passes: Passes
    policies: Mapping[str, OnFailure]
    """What becomes of a row for which a step fails, by the step's name."""
    stage_counts: StageCounts
    """Says where rows leave the pipeline."""
    fail_fast: bool
    """A refusal settles its event at once."""
    ledger: Ledger
    letters: LetterStore
    links: Mapping[str, bool] = field(default_factory=dict)
    """Sinks that hand rows on to another log, and whether events wait for what becomes of them there."""
    repeats: Duplicates | None = None
    """Knows for which events rows wait, where a step knows events again."""
    ways: Mapping[str, Way] = field(default_factory=dict)
    """By sink: what is in front of it."""
    traces: BatchTraces | None = None
    """Makes spans of what happens to batches; None: the pipeline has no traces."""
    _committing: threading.Lock = field(default_factory=threading.Lock)
    _gone: set[str] = field(default_factory=set)
    """Sinks that are not in the pipeline, of which that was said."""

    def __post_init__(self) -> None:
        passes = self.passes
        self.source, self.state, self.log = passes.source, passes.state, passes.log
        self.sinks, self.steps, self.windows = passes.sinks, passes.steps, passes.windows
        self.waits = Waits(passes.state, passes.sinks, passes.steps, passes.control)

    def open(self, batch: BatchRef) -> BatchState:
        """Begin a batch, or find it as an earlier run left it."""
        # Before anybody can see that its events are taken: a mark that moved in between would make them late.
        for window in self.windows.values():
            window.stamp(batch)
        known = self.ledger.open_batch(batch.source, batch.start, batch.end, list(self.sinks))
        if known.settled:
            remove_receipts(receipts_directory(self.state, batch))
        self._tell_windows(known)  # a kill, or whoever has settled it elsewhere, has not
        return known

    def _tell_windows(self, known: BatchState) -> None:
        """Tell the windows that get no more rows of a batch. May be repeated."""
        for name, window in self.windows.items():
            if known.settled:
                window.forget_batch(known.ref)
            elif not owes(known, name + STATE):
                window.close_batch(known.ref)

    def tidy(self, unfinished: Sequence[BatchRef]) -> None:
        """Remove what an earlier run has left of batches that are finished."""
        remove_stray_receipts(self.state, self.source, unfinished)
        for window in self.windows.values():
            window.marks.forget_others(self.source, unfinished)
            window.advance()

    def owing(self, known: BatchState) -> dict[Debtor, SinkState]:
        """Those that are still to be given rows of a batch: sinks, and steps in front of them."""
        return {
            who: state for who, state in known.debtors.items() if state.to_ask and sink_of(who) in self.sinks
        }

    @property
    def ordered(self) -> frozenset[str]:
        """Sinks that get rows in order: none of a later batch before all of the earlier ones."""
        return frozenset(name for name, entry in self.sinks.items() if entry.config.ordered_by)

    def waits_elsewhere(self, known: BatchState) -> bool:
        """Nobody is to be asked: all that is not settled was handed on, and is settled there."""
        return not self.owing(known) and any(state.handed_on for state in known.sinks.values())

    def round(self, batch: BatchRef, known: BatchState, asked: Mapping[Debtor, SinkState]) -> BatchState:
        """Ask some of those that owe, sinks and steps, and record it; the others owe what they owed."""
        waits = {who: state for who, state in asked.items() if isinstance(who, Wait)}
        sinks = {who: state for who, state in asked.items() if isinstance(who, str) and who in self.sinks}
        if sinks or not waits:
            known = self._ask_sinks(batch, known, sinks)
        for step in {wait.step: None for wait in waits}:
            mine = {wait: state for wait, state in waits.items() if wait.step == step}
            if not known.settled:
                known = self._ask_step(batch, known, step, mine)
        return known

    def _ask_sinks(self, batch: BatchRef, known: BatchState, asked: Mapping[str, SinkState]) -> BatchState:
        """One pass for sinks that owe."""
        began = time.time()
        asked = {name: only_open(state, known.owed) for name, state in asked.items()}
        # What a step fails on is said once, with the first pass; and again if a sink has come into the
        # pipeline since, whose steps may be new.
        untried = not known.delivered and not any(state.tried for state in known.debtors.values())
        with_errors = untried or not all(state.tried for state in asked.values())
        held = {name for name, state in known.sinks.items() if name not in asked and not state.tried}
        known_here = frozenset(held & self.sinks.keys())
        numbers = numbers_of_sinks(self.sinks, known, asked)
        work = Work(batch, asked, known_here, with_errors, carried=self._carried(batch), published_as=numbers)
        nobody = not (asked or work.held or with_errors)
        results, wanted = [] if nobody else self.passes.results(work), Wanted(asked)
        if not with_errors:
            results = relevant(self._news(known, results), wanted, self.steps, known.owed)
        verdict = self._judge(work, known, asked, results)
        published: set[Debtor] = {name for name in verdict.published if name in numbers}
        ask_for_new_rows(verdict, results, asked)
        add_waits(verdict, results, wanted, self.steps, known.waits, time.time())
        self._keep_missing(verdict, known, asked, results)
        taken_over = self._taken_over(known, results)
        for who, state in known.debtors.items():
            if not state.done and who not in asked:
                if sink_of(who) not in self.sinks:
                    self._close_gone(verdict, known, who, state, taken_over)
                else:
                    self._not_asked(verdict, known, who, state, results)
        # Of the first pass only: a later one with errors, for a new sink, goes over the same rows.
        filtered = self.stage_counts.filtered(results) if untried else {}
        recorded = self._record(batch, known, verdict, published, filtered)
        self._trace(batch, asked, began, results, verdict, recorded)
        return recorded

    def _ask_step(
        self, batch: BatchRef, known: BatchState, step: str, waits: Mapping[Wait, SinkState]
    ) -> BatchState:
        """One pass for the rows that wait for a step, to the sinks that lack them."""
        began = time.time()
        waits = {wait: only_open(state, known.owed) for wait, state in waits.items()}
        if step in self.passes.before_uniting:
            waits = {wait: by_event(state) for wait, state in waits.items()}
        asked = {wait.sink: Untried(state.wanted_rows) for wait, state in waits.items() if state.wanted_rows}
        said, unknown = self._said_of(step, waits)
        to_ask = asked if unknown is None else _of_events(asked, unknown)
        by_sink, carried = {wait.sink: wait for wait in waits}, self._carried(batch)
        numbers = numbers_of_waits(self.sinks, known, by_sink)
        work = Work(batch, to_ask, frozenset(), False, step, carried=carried, published_as=numbers)
        wanted = Wanted(asked, self.passes.way_through(step))
        results = on_the_way(step, said + (self.passes.results(work) if to_ask else []), self.steps)
        results = relevant(self._news(known, results), wanted, self.steps, known.owed)
        verdict = self._judge(work, known, asked, results)
        ask_for_new_rows(verdict, results, asked)
        add_waits(verdict, results, wanted, self.steps, known.waits, time.time(), again=step)
        for wait, state in waits.items():
            rows = self._missing(known, wait.sink, state, results)
            left = not_let_through(wait, rows, self.steps.get(step), self.ways.get(wait.sink))
            verdict.outcomes += lettered(left, wait.sink, self.ways.get(wait.sink))
        take_over(verdict, known, waits, self._atomic)
        recorded = self._record(batch, known, verdict, {by_sink[sink] for sink in verdict.published})
        self._trace(batch, asked, began, results, verdict, recorded)
        return recorded

    def _carried(self, batch: BatchRef) -> Carried:
        return {} if self.traces is None else self.traces.carried(batch)

    def _trace(
        self,
        batch: BatchRef,
        asked: Mapping[str, SinkState],
        began: float,
        results: Sequence[TaskReport],
        verdict: Round,
        recorded: BatchState,
    ) -> None:
        if self.traces is not None:
            self.traces.heard(batch, asked, began, results, verdict.outcomes, recorded)

    def _said_of(
        self, step: str, waits: Mapping[Wait, SinkState]
    ) -> tuple[list[TaskReport], frozenset[int] | None]:
        """Of rows that wait for other events: what is known of them, and the events that need a pass; None:
        all of them."""
        if self.repeats is None or not self.follows(step):
            return [], None
        rows = {row for state in waits.values() for row in state.wanted_rows}
        return self.repeats.news(self.source, step, rows)

    def follows(self, step: str) -> bool:
        """Whether rows wait at a step for other events, and not for the step."""
        return step in self.steps and self.steps[step].follows

    def blocked(self, who: Debtor, state: SinkState) -> bool:
        """Whether nothing can be done yet for rows that wait: the events they repeat are in flight."""
        if not isinstance(who, Wait) or self.repeats is None or not self.follows(who.step):
            return False
        blocked = self.repeats.blocked(self.source)
        return all(row.sequence in blocked for row in state.wanted_rows)

    def _news(self, known: BatchState, results: list[TaskReport]) -> list[TaskReport]:
        """Of a later round: without what the steps that fail by themselves have said of the rows before."""
        if not any(fails_by_itself(result, self.steps) for result in results):
            return results
        ref = known.ref
        said = {(o.row, o.stage) for o in self.ledger.exceptions(ref.source, ref.start, ref.end)}
        return [
            result
            for result in results
            if not fails_by_itself(result, self.steps)
            or (row_of(result).sequence in known.owed and (row_of(result), result.name) not in said)
        ]

    @property
    def _atomic(self) -> set[str]:
        return {name for name, entry in self.sinks.items() if entry.sink.atomic}

    def _judge(
        self, work: Work, known: BatchState, asked: Mapping[str, SinkState], results: list[TaskReport]
    ) -> Round:
        return judge(
            results + self._excluded(known),
            {name: (self.sinks[name].config, state) for name, state in asked.items()},
            self.policies,
            lambda name, parts: self._commit(name, work.batch_for(name), parts),
            self._atomic,
            time.time(),
            self.links,
            {name for name in asked if self.sinks[name].sink.takes_back},
        )

    def _record(
        self,
        batch: BatchRef,
        known: BatchState,
        verdict: Round,
        published: Collection[Debtor],
        filtered: Mapping[str, tuple[int, str]] | None = None,
    ) -> BatchState:
        if self.fail_fast:
            refused = (o.row.sequence for o in verdict.outcomes if o.outcome == Outcome.REFUSED)
            verdict.settle(BitMap64(refused))
        self.letters.store(to_store(verdict.dead, known.owed), self.passes.control)
        recorded = self.ledger.record(
            batch.source,
            batch.start,
            batch.end,
            delivered=verdict.delivered,
            outcomes=verdict.outcomes,
            sinks=verdict.sinks,
            waits=verdict.waits,
            owed=verdict.owed,
            rows=verdict.rows,
            filtered=filtered,
            at_once=self.fail_fast,
            published=published,
        )
        # They count for the round they were written in; later ones would count their rows again.
        remove_receipts(receipts_directory(self.state, batch))
        self._tell_windows(recorded)
        self.stage_counts.add(verdict.outcomes, filtered or {})
        return recorded

    def _not_asked(
        self,
        verdict: Round,
        known: BatchState,
        who: Debtor,
        state: SinkState,
        results: Sequence[TaskReport],
    ) -> None:
        """A sink of the pipeline, or a step rows wait for, owes what it owed. Of a sink of which it was not
        known what comes to it, the results say that, and what may come, and waits for a step."""
        if isinstance(who, Wait) or not isinstance(state, Untried):
            verdict.owed |= state.owes(known.owed)
            return
        mine = [result for result in results if result.name == who]
        held, waiting = came_to([who], mine), waiting_for(results, self.steps, who)
        named = note_split(RowRef(n, child) for n, some in came_names(mine).items() for child in some)
        verdict.owed |= held | waiting
        coming = state.filtered(lambda row: row.sequence in held or row.sequence in waiting)
        assert isinstance(coming, Untried)
        behind = coming.held_back(WAITS, time.time(), held, named)
        verdict.sinks[who] = behind if held | waiting else Done()

    def _taken_over(self, known: BatchState, results: Sequence[TaskReport]) -> BitMap64:
        """The events of which new sinks get what all those that are gone owe."""
        new = [came_to([name], results) | waiting_for(results, self.steps, name) for name in self._new(known)]
        gone = {sink_of(who) for who, state in known.debtors.items() if state.error != REMOVED}
        return stood_for([name for name in gone - self.sinks.keys() if not name.endswith(LATENESS)], new)

    def _new(self, known: BatchState) -> list[str]:
        """The sinks of which nobody has seen yet what comes to them of a batch."""
        return [
            name
            for name, entry in self.sinks.items()
            if name in known.sinks and not known.sinks[name].tried and not entry.sink.observes
        ]

    def _close_gone(
        self, verdict: Round, known: BatchState, who: Debtor, state: SinkState, taken_over: BitMap64
    ) -> None:
        """Nobody can write to a sink that is gone from the pipeline: what it owes becomes dead letters.

        Not of a batch of which nothing has been seen yet: that is done as the pipeline is now."""
        sink = sink_of(who)
        owed = owed_by_gone(who, state, known, BitMap64()) if state.tried else []
        rows = [row for row in owed if row.sequence not in taken_over]
        new = self._new(known) if taken_over else []
        verdict.outcomes += lettered(rows, sink, GONE.format(sink, left_out_before(new, self.ways)))
        if isinstance(who, Wait):
            verdict.waits[who] = Done(error=REMOVED)
        else:
            verdict.sinks[who] = Done(error=REMOVED)
        if sink not in self._gone:
            self._gone.add(sink)
            logger.warning('sink "%s" is no longer in the pipeline; %s', sink, _left_behind(owed, rows))

    def _keep_missing(
        self, verdict: Round, known: BatchState, asked: Mapping[str, SinkState], results: Sequence[TaskReport]
    ) -> None:
        """What was owed and has not come out of the plan is kept as dead letters."""
        for name, state in asked.items():
            if state.tried and not self.sinks[name].sink.observes:
                missing = self._missing(known, name, state, results)
                verdict.outcomes += lettered(missing, name, self.ways.get(name))

    def _missing(
        self, known: BatchState, sink: str, state: SinkState, results: Sequence[TaskReport]
    ) -> list[RowRef]:
        heard = [*results, *self._excluded(known)]
        return not_coming(sink, state, heard, known.owed, self.ways.get(sink))

    def _excluded(self, known: BatchState) -> list[TaskReport]:
        """Poison events: the log withholds them from Spark, so their outcome is added here."""
        withheld = excluded(self.log) & known.owed
        return [
            TaskReport(
                self.source, ReportKind.ERROR, sequence, "", self.letters.reason(self.source, sequence)
            )
            for sequence in withheld
        ]

    # -- after the pass

    def _commit(self, name: str, batch: BatchRef, parts: Sequence[bytes]) -> str | None:
        try:
            with self._committing:
                self.sinks[name].sink.commit(batch, parts)
        except Discarded:
            raise
        except PermanentError as error:
            return Final(redact(str(error)))
        except SinkError as error:
            return redact(str(error))
        return None


def _left_behind(owed: Sequence[RowRef], lettered_ones: Sequence[RowRef]) -> str:
    """What becomes of what a sink owes that is gone, as its first batch shows it."""
    letters = "dead letters, to be replayed when it is back, or dropped"
    if not owed:
        return "what it owes is closed"
    if len(lettered_ones) == len(owed):
        return f"what it owes becomes {letters}"
    return f"what it owes goes to the new sink in its place; rows that do not come to that become {letters}"


def owes(known: BatchState, sink: str, but: Collection[str] = ()) -> bool:
    """Whether a sink may still be given rows of a batch, from the pass or from a step they wait for.
    `but`: these steps do not count."""
    if known.settled:
        return False
    waits = (state for wait, state in known.waits.items() if wait.sink == sink and wait.step not in but)
    own = known.sinks.get(sink)
    return (own is not None and own.to_ask) or any(state.to_ask for state in waits)


def _of_events(asked: Mapping[str, SinkState], events: frozenset[int]) -> dict[str, SinkState]:
    """Of what is asked for only the rows of some events."""
    some = {name: state.filtered(lambda row: row.sequence in events) for name, state in asked.items()}
    return {name: state for name, state in some.items() if state.wanted_rows}
