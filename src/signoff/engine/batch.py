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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pyarrow as pa
from py4j.protocol import Py4JError
from pyroaring import BitMap64
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from signoff.engine.compile import Plan
from signoff.engine.control import Control, GaveUp, Interrupted
from signoff.engine.delivery import Pass, SinkTask, Span
from signoff.engine.departures import Departures, of_counts
from signoff.engine.ended import ended
from signoff.engine.letters import LetterStore, to_store
from signoff.engine.missing import (
    Way,
    came_names,
    came_to,
    lettered,
    not_coming,
    not_let_through,
    owed_by_gone,
    stood_for,
)
from signoff.engine.poison import PlanFailed, last_line
from signoff.engine.reasons import explained, unexplained
from signoff.engine.receipts import (
    receipts_directory,
    remove_receipts,
    remove_stray_receipts,
    valid_receipts,
)
from signoff.engine.repeats import Repeats
from signoff.engine.result import RESULT_DDL, Kind, Result, from_table
from signoff.engine.serving import SinkEntry, sink_task
from signoff.engine.standing import StandingPass
from signoff.engine.verdict import Round, ask_for_new_rows, judge, note_split
from signoff.engine.waiting import (
    PatientStep,
    Wanted,
    add_waits,
    by_event,
    due_again,
    fails_by_itself,
    on_the_way,
    only_open,
    relevant,
    row_of,
    rows_alone,
    take_over,
    waiting_for,
)
from signoff.errors import Discarded, SinkError
from signoff.ledger.ledger import Ledger
from signoff.ledger.outcome import BatchState, Outcome, RowRef, SinkState, Wait
from signoff.link.handover import HandoverConfig
from signoff.link.lookup import in_a_buffer
from signoff.log import LogReader, excluded
from signoff.log.shared_disk import not_shared, prove_shared
from signoff.pipeline.model import OnFailure, Retry
from signoff.pipeline.secrets import redact
from signoff.sinks.contract import BatchRef
from signoff.sinks.retry import next_wait_s
from signoff.state.key_index import repeats_another
from signoff.state.windowing import LATENESS, STATE, WindowIntake
from signoff.transforms.frame import MARK

logger = logging.getLogger(__name__)

_ARROW_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_ARROW_BATCH = str(16 * 1024**2)
_UNMEASURED = str(2**31 - 1)
_SMALL_BATCH = 256 * 1024**2
_SMALL_EVENT = 8 * 1024

_CHEAP_S = 0.5
"""What a pass may take without being called costly."""
_REST = 15
"""How many times as long as a costly pass took a sink is let alone."""
WAITS = "earlier batches come first"
"""Why a sink that is behind was not asked."""
GONE = 'sink "{}" is not in the pipeline any more; put it back to replay this, or drop it'
"""Why a row is a dead letter that was owed to a sink which was renamed or removed."""
REMOVED = "removed from the pipeline"
"""Said of a sink that is gone, once what it owed is settled."""

RangePlan = Callable[[int, int, set[str] | None, frozenset[int] | None], Plan]
"""Compile the source's plan over a fixed range of the log, for some sinks or all, over some events or all."""


@dataclass(frozen=True)
class _Work:
    """What one pass is for."""

    batch: BatchRef
    asked: Mapping[str, SinkState]
    held: frozenset[str]
    """Sinks that are not asked, and of which it is not known yet what they are to get."""
    with_errors: bool
    """Whether what the steps fail on is said."""
    step: str | None = None
    """The step the rows have waited for, if they have."""


@dataclass
class BatchRunner:
    """Does the batches of one source. Two threads may do a round each, of different batches."""

    source: str
    spark: SparkSession
    """A session of its own."""
    state: Path
    log: Path
    sinks: Mapping[str, SinkEntry]
    policies: Mapping[str, OnFailure]
    """What becomes of a row for which a step fails, by the step's name."""
    departures: Departures
    """Says where rows leave the pipeline."""
    fail_fast: bool
    """A refusal settles its event at once."""
    ledger: Ledger
    letters: LetterStore
    control: Control
    range_plan: RangePlan
    steps: Mapping[str, PatientStep]
    """The steps that may fail for now."""
    isolate: Callable[[int, int], None]
    """Find the events a plan fails on, store them as dead letters, exclude them from reading.
    Raises PlanFailed if it is not the events."""
    links: Mapping[str, bool] = field(default_factory=dict)
    """Sinks that hand rows on to another log, and whether events wait for what becomes of them there."""
    windows: Mapping[str, WindowIntake] = field(default_factory=dict)
    """The windows that rows come to."""
    repeats: Repeats | None = None
    """Knows for which events rows wait, where a step knows events again."""
    unites: bool = False
    """A step makes one row of several events: they are read together whenever one is asked for again."""
    before_uniting: frozenset[str] = frozenset()
    """Such steps, and those that have one behind them."""
    ways: Mapping[str, Way] = field(default_factory=dict)
    """By sink: what is in front of it."""
    halt: threading.Event = field(default_factory=threading.Event)
    """Set when the query ends: what fails then has been interrupted, and nobody is to blame."""
    waits_for: tuple[str, ...] = ()
    """Sinks that `run` has asked, and will ask again."""
    standing: StandingPass | None = None
    """Does passes over whole batches, where each is a job of its own."""
    _alone: threading.Lock = field(default_factory=threading.Lock)
    """Held for what two passes must not do at once."""
    _isolating: threading.Lock = field(default_factory=threading.Lock)
    _failing: dict[tuple[int, str, float], float] = field(default_factory=dict)
    """Batches and sinks that fail on them, and when this run has found that first."""
    _measured: int = 0
    """Passes under way over large events."""
    _gone: set[str] = field(default_factory=set)
    """Sinks that are not in the pipeline, of which that was said."""

    def sink_tasks(self, plan: Plan) -> tuple[SinkTask, ...]:
        """What a pass over a whole batch has to do for each sink of a plan."""
        return tuple(sink_task(name, self.sinks[name], SinkState(done=False), plan) for name in plan.sinks)

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

    def stamps_at(self, sequence: int) -> dict[str, int | None]:
        """What the events of the batch that one is in are stamped with."""
        return {
            MARK + name: window.marks.stamp_at(self.source, sequence) for name, window in self.windows.items()
        }

    def _tell_windows(self, known: BatchState) -> None:
        """Tell the windows that get no more rows of a batch. May be repeated."""
        batch = BatchRef(known.ref.source, known.ref.start, known.ref.end)
        for name, window in self.windows.items():
            if known.settled:
                window.forget_batch(batch)
            elif not owes(known, name + STATE):
                window.close_batch(batch)

    def tidy(self, unfinished: Sequence[BatchRef]) -> None:
        """Remove what an earlier run has left of batches that are finished."""
        remove_stray_receipts(self.state, self.source, unfinished)
        for window in self.windows.values():
            window.marks.forget_others(self.source, unfinished)
            window.advance()

    def run(self, batch: BatchRef, plan: Plan | None) -> None:
        """Do a batch until it is settled. `plan` is the stream's own; None: read the range.

        Raises Interrupted or GaveUp when the run ends first; the batch then stays owed.
        """
        known = self.open(batch)
        if known.settled or self.waits_elsewhere(known):
            if plan is not None and plan.stateful:  # it was recorded, but not committed by Spark
                touch(plan.df)
            return
        try:
            self._until_settled(batch, plan, known)
        finally:
            self.waits_for = ()

    def _until_settled(self, batch: BatchRef, plan: Plan | None, known: BatchState) -> None:
        due: dict[str, float] = {}
        while not known.settled and not self.waits_elsewhere(known):
            asked = self._due_sinks(known, due)
            known = self.round(batch, plan, known, asked)
            self.waits_for = tuple(self.owing(known))
            due |= due_again(self.owing(known), asked, due, partial(self.wait_s, batch))
            if plan is not None and not plan.stateful:
                plan = None  # later rounds read the few rows they need, not what the stream planned

    def owing(self, known: BatchState) -> dict[str, SinkState]:
        """Those that are still to be given rows of a batch: sinks, and steps in front of them."""
        return {
            name: state
            for name, state in known.sinks.items()
            if state.to_ask and (wait.sink if (wait := Wait.parse(name)) else name) in self.sinks
        }

    @property
    def ordered(self) -> frozenset[str]:
        """Sinks that get rows in order: none of a later batch before all of the earlier ones."""
        return frozenset(name for name, entry in self.sinks.items() if entry.config.ordered_by)

    def waits_elsewhere(self, known: BatchState) -> bool:
        """Nobody is to be asked: all that is not settled was handed on, and is settled there."""
        return not self.owing(known) and any(state.handed for state in known.sinks.values())

    def see_patience(self, known: BatchState) -> None:
        """Raises GaveUp when another pipeline has not answered within the time a run that is to end has."""
        patience = self.control.patience_s
        for name, state in known.sinks.items():
            if patience is None or not state.handed or not self._may_lead_outside(name):
                continue
            # Of a sink that was removed it is not kept since when.
            waits_s = self._failing_s(known.ref.start, name, replace(state, since=state.since or 0.0))
            if waits_s > patience and (name in self.sinks or not self._in_a_buffer(name, known)):
                gone = "" if name in self.sinks else ", which is not in the pipeline any more,"
                raise GaveUp(f'the pipeline behind sink "{name}"{gone} has not answered for {patience:.0f} s')

    def _in_a_buffer(self, name: str, known: BatchState) -> bool:
        return in_a_buffer(self.state, name, BatchRef(known.ref.source, known.ref.start, known.ref.end))

    def _may_lead_outside(self, name: str) -> bool:
        """Whether a sink has handed its rows on to another pipeline; of one that is gone, whether it may."""
        if name not in self.sinks:
            return "." not in name
        config = self.sinks[name].config
        return isinstance(config, HandoverConfig) and config.outside

    def _failing_s(self, start: int, name: str, state: SinkState) -> float:
        """How long this run knows that a sink fails on a batch; the time of day may have been set since."""
        now = time.monotonic()
        return 0.0 if state.since is None else now - self._failing.setdefault((start, name, state.since), now)

    def _due_sinks(self, known: BatchState, due: Mapping[str, float]) -> dict[str, SinkState]:
        """The sinks to ask now; waits when all that still owe have been asked a moment ago."""
        owing = self.owing(known)
        if not owing:
            return {}
        wait = min(due.get(name, 0.0) for name in owing) - time.monotonic()
        self.control.wait(max(wait, 0.0))
        now = time.monotonic()
        return {name: state for name, state in owing.items() if due.get(name, 0.0) <= now + 0.005}

    def round(
        self, batch: BatchRef, plan: Plan | None, known: BatchState, asked: Mapping[str, SinkState]
    ) -> BatchState:
        """Ask some of those that owe, sinks and steps, and record it; the others owe what they owed."""
        waits = {wait: state for name, state in asked.items() if (wait := Wait.parse(name)) is not None}
        sinks = {name: state for name, state in asked.items() if name in self.sinks}
        if sinks or not waits:
            known = self._ask_sinks(batch, plan, known, sinks)
        for step in {wait.step: None for wait in waits}:
            mine = {wait: state for wait, state in waits.items() if wait.step == step}
            if not known.settled:
                known = self._ask_step(batch, plan, known, step, mine)
        return known

    def _ask_sinks(
        self, batch: BatchRef, plan: Plan | None, known: BatchState, asked: Mapping[str, SinkState]
    ) -> BatchState:
        """One pass for sinks that owe."""
        asked = {n: only_open(state, known.owed) if state.owed else state for n, state in asked.items()}
        # What a step fails on is said once, with the first pass; and again if a sink has come into the
        # pipeline since, whose steps may be new.
        untried = not known.delivered and not any(_is_tried(state) for state in known.sinks.values())
        with_errors = untried or not all(_is_tried(state) for state in asked.values())
        held = {name for name, state in known.sinks.items() if name not in asked and not _is_tried(state)}
        work = _Work(batch, asked, frozenset(held & self.sinks.keys()), with_errors)
        nobody = not (asked or work.held or with_errors)
        results, wanted = [] if nobody else self._results(work, plan), Wanted(asked)
        if not with_errors:
            results = relevant(self._news(known, results), wanted, self.steps, known.owed)
        verdict = self._judge(work.batch, known, asked, results)
        ask_for_new_rows(verdict, results, asked)
        add_waits(verdict, results, wanted, self.steps, known.sinks, time.time())
        self._keep_missing(verdict, known, asked, results)
        taken_over = self._taken_over(known, results)
        for name, state in known.sinks.items():
            if not state.done and name not in asked:
                if _sink_of(name) not in self.sinks:
                    self._close_gone(verdict, known, name, state, taken_over)
                    continue
                mine = [result for result in results if result.name == name]
                self._not_asked(verdict, known, name, state, mine, waiting_for(results, self.steps, name))
        # Of the first pass only: a later one with errors, for a new sink, goes over the same rows.
        filtered = self.departures.filtered(results) if untried else {}
        return self._record(batch, known, verdict, filtered)

    def _ask_step(
        self,
        batch: BatchRef,
        plan: Plan | None,
        known: BatchState,
        step: str,
        waits: Mapping[Wait, SinkState],
    ) -> BatchState:
        """One pass for the rows that wait for a step, to the sinks that lack them."""
        waits = {wait: only_open(state, known.owed) for wait, state in waits.items()}
        if step in self.before_uniting:
            waits = {wait: by_event(state) for wait, state in waits.items()}
        asked = {
            wait.sink: SinkState(done=False, owed=state.owed) for wait, state in waits.items() if state.owed
        }
        said, unknown = self._said_of(step, waits)
        to_ask = asked if unknown is None else _of_events(asked, unknown)
        work = _Work(rows_alone(batch, waits), to_ask, frozenset(), with_errors=False, step=step)
        wanted = Wanted(asked, self._way(step))
        results = on_the_way(step, said + (self._results(work, plan) if to_ask else []), self.steps)
        results = relevant(self._news(known, results), wanted, self.steps, known.owed)
        verdict = self._judge(work.batch, known, asked, results)
        ask_for_new_rows(verdict, results, asked)
        add_waits(verdict, results, wanted, self.steps, known.sinks, time.time(), again=step)
        for wait, state in waits.items():
            rows = self._missing(known, wait.sink, state, results)
            left = not_let_through(wait, rows, self.steps.get(step), self.ways.get(wait.sink))
            verdict.outcomes += lettered(left, wait.sink)
        take_over(verdict, known, waits, self._atomic)
        return self._record(batch, known, verdict)

    def _said_of(
        self, step: str, waits: Mapping[Wait, SinkState]
    ) -> tuple[list[Result], frozenset[int] | None]:
        """Of rows that wait for other events: what is known of them, and the events that need a pass; None:
        all of them."""
        if self.repeats is None or not self.follows(step):
            return [], None
        rows = {row for state in waits.values() for row in state.owed or ()}
        return self.repeats.news(self.source, step, rows)

    def follows(self, step: str) -> bool:
        """Whether rows wait at a step for other events, and not for the step."""
        return step in self.steps and self.steps[step].follows

    def blocked(self, name: str, state: SinkState) -> bool:
        """Whether nothing can be done yet for rows that wait: the events they repeat are in flight."""
        wait = Wait.parse(name)
        if wait is None or self.repeats is None or not self.follows(wait.step):
            return False
        blocked = self.repeats.blocked(self.source)
        return all(row.sequence in blocked for row in state.owed or ())

    def _way(self, step: str) -> frozenset[str] | None:
        """A step that is waited for, and those behind it; None if it is gone from the pipeline."""
        return self.steps[step].behind | {step} if step in self.steps else None

    def _news(self, known: BatchState, results: list[Result]) -> list[Result]:
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
        self, batch: BatchRef, known: BatchState, asked: Mapping[str, SinkState], results: list[Result]
    ) -> Round:
        return judge(
            results + self._excluded(known),
            {name: (self.sinks[name].config, state) for name, state in asked.items()},
            self.policies,
            lambda name, parts: self._commit(name, batch, parts),
            self._atomic,
            time.time(),
            self.links,
            () if batch.replay else {name for name in asked if self.sinks[name].sink.takes_back},
        )

    def _record(
        self,
        batch: BatchRef,
        known: BatchState,
        verdict: Round,
        filtered: Mapping[str, tuple[int, str]] | None = None,
    ) -> BatchState:
        if self.fail_fast:
            refused = (o.row.sequence for o in verdict.outcomes if o.outcome == Outcome.REFUSED)
            verdict.settle(BitMap64(refused))
        self.letters.store(to_store(verdict.dead, known.owed), self.control)
        recorded = self.ledger.record(
            batch.source,
            batch.start,
            batch.end,
            delivered=verdict.delivered,
            outcomes=verdict.outcomes,
            sinks=verdict.sinks,
            owed=verdict.owed,
            rows=verdict.rows,
            filtered=filtered,
            at_once=self.fail_fast,
        )
        # They count for the round they were written in; later ones would count their rows again.
        remove_receipts(receipts_directory(self.state, batch))
        self._tell_windows(recorded)
        self.departures.add(verdict.outcomes, filtered or {})
        return recorded

    def _not_asked(
        self,
        verdict: Round,
        known: BatchState,
        name: str,
        state: SinkState,
        mine: Sequence[Result],
        waiting: BitMap64,
    ) -> None:
        """A sink of the pipeline, or a step rows wait for, owes what it owed. `mine`: says what comes to a
        sink of which that was not known; `waiting`: what may, and waits for a step."""
        if Wait.parse(name) is not None:
            verdict.owed |= BitMap64(row.sequence for row in state.owed or ())
        elif _is_tried(state):
            verdict.owed |= state.owes(known.owed)
        else:
            held = came_to([name], mine)
            split = note_split(RowRef(n, child) for n, some in came_names(mine).items() for child in some)
            verdict.owed |= held | waiting
            behind = replace(state, error=WAITS, since=time.time(), rows_of=held, split=split)
            verdict.sinks[name] = behind if held | waiting else SinkState(done=True)

    def _taken_over(self, known: BatchState, results: Sequence[Result]) -> BitMap64:
        """The events of which new sinks get what all those that are gone owe."""
        new = [
            came_to([name], results) | waiting_for(results, self.steps, name)
            for name, entry in self.sinks.items()
            if name in known.sinks and not _is_tried(known.sinks[name]) and not entry.sink.observes
        ]
        gone = {_sink_of(name) for name, state in known.sinks.items() if state.error != REMOVED}
        return stood_for([name for name in gone - self.sinks.keys() if not name.endswith(LATENESS)], new)

    def _close_gone(
        self, verdict: Round, known: BatchState, name: str, state: SinkState, taken_over: BitMap64
    ) -> None:
        """Nobody can write to a sink that is gone from the pipeline: what it owes becomes dead letters.

        Not of a batch of which nothing has been seen yet: that is done as the pipeline is now."""
        sink = _sink_of(name)
        rows = owed_by_gone(name, state, known, taken_over) if _is_tried(state) else []
        verdict.outcomes += lettered(rows, sink, GONE.format(sink))
        verdict.sinks[name] = SinkState(done=True, error=REMOVED)
        if sink not in self._gone:
            self._gone.add(sink)
            what = "becomes dead letters, to be replayed when it is back, or dropped" if rows else "is closed"
            logger.warning('sink "%s" is no longer in the pipeline; what it owes %s', sink, what)

    def _keep_missing(
        self, verdict: Round, known: BatchState, asked: Mapping[str, SinkState], results: Sequence[Result]
    ) -> None:
        """What was owed and has not come out of the plan is kept as dead letters."""
        for name, state in asked.items():
            if _is_tried(state) and not self.sinks[name].sink.observes:
                verdict.outcomes += lettered(self._missing(known, name, state, results), name)

    def _missing(
        self, known: BatchState, sink: str, state: SinkState, results: Sequence[Result]
    ) -> list[RowRef]:
        heard = [*results, *self._excluded(known)]
        return not_coming(sink, state, heard, known.owed, self.ways.get(sink))

    # -- the pass over the rows

    def _results(self, work: _Work, plan: Plan | None) -> list[Result]:
        return self._explained(work.batch, self._results_of_passes(work, plan))

    def _explained(self, batch: BatchRef, results: list[Result]) -> list[Result]:
        """With the reasons of expressions that failed: their rows are computed once more."""
        events = frozenset(result.sequence or 0 for result in unexplained(results))
        if not events:
            return results
        if self.unites:  # the same rows come out only of the same events
            plan = self.range_plan(batch.start, batch.end, None, None)
        else:
            plan = self.range_plan(min(events), max(events) + 1, None, events)
        return explained(results, plan.attempts)

    def _results_of_passes(self, work: _Work, plan: Plan | None) -> list[Result]:
        try:
            return self._try_pass(work, plan)
        except PlanFailed as failure:
            logger.warning("batch %s failed, trying it again: %s", work.batch.key, failure)
        try:
            return self._try_pass(work, plan)
        except PlanFailed as again:
            with self._isolating:
                self.isolate(work.batch.start, work.batch.end)
            if plan is not None and plan.stateful:
                raise PlanFailed("the query starts again without the events it failed on") from again
        return self._try_pass(work, None)

    def _try_pass(self, work: _Work, plan: Plan | None) -> list[Result]:
        try:
            with self._arrow_sized(self.spark if plan is None else plan.df.sparkSession, work.batch):
                return self._pass(work, plan)
        except (PySparkException, Py4JError) as failure:
            if self.control.overdue or self.halt.is_set():
                raise Interrupted from failure
            raise PlanFailed(not_shared(failure) or last_line(failure)) from failure

    def _pass(self, work: _Work, plan: Plan | None) -> list[Result]:
        if work.step is not None:
            return self._pass_for_step(work, work.step, plan)
        batch, asked = work.batch, work.asked
        directory = receipts_directory(self.state, batch)
        # Receipts are not written for such plans; those of an earlier form of the pipeline say nothing of it.
        forms = {name: entry.form for name, entry in self.sinks.items()}
        known = [] if self.unites else valid_receipts(directory, forms)
        receipts = [receipt for receipt in known if receipt.sink in asked]
        whole = not receipts and all(state.owed is None and not state.split for state in asked.values())
        if plan is None and self.standing is not None and whole:
            sinks = {name: state.attempts for name, state in asked.items()} | dict.fromkeys(work.held)
            stamps = self.stamps_at(batch.start)
            table, counts = self.standing.run(batch, sinks, work.with_errors, stamps)
            return from_table(table) + of_counts(counts)
        if plan is None:
            whole = work.with_errors or bool(work.held) or self.unites
            start, end = _span(batch, asked, whole=whole)
            rows = None if whole else _owed_rows(asked)
            plan = self.range_plan(start, end, None if work.with_errors else {*asked, *work.held}, rows)
        covered: dict[str, list[Span]] = {}
        for receipt in receipts:
            covered.setdefault(receipt.sink, []).append(receipt.span)
        tasks = [
            sink_task(name, self.sinks[name], state, plan, covered.get(name, ()))
            for name, state in asked.items()
        ]
        nothing = SinkState(done=False)
        tasks += [replace(sink_task(n, self.sinks[n], nothing, plan), held=True) for n in work.held]
        errors = plan.said(all_steps=work.with_errors)
        one_pass = Pass(batch, tuple(tasks), errors, None if plan.shuffled else directory)
        df = plan.df.mapInArrow(one_pass, RESULT_DDL)
        results = from_table(df.toArrow()) + of_counts(ended(df) if work.with_errors else {})
        return results + [result for receipt in receipts for result in receipt.results]

    def _pass_for_step(self, work: _Work, step: str, plan: Plan | None) -> list[Result]:
        if plan is None:
            rows = _owed_rows(work.asked)
            assert rows
            start, end = min(rows), max(rows) + 1
            if self.unites and step not in self.before_uniting:
                start, end, rows = work.batch.start, work.batch.end, None
            plan = self.range_plan(start, end, set(work.asked), rows)
        tasks = [
            sink_task(name, self.sinks[name], state, plan, step=step) for name, state in work.asked.items()
        ]
        tasks = [replace(task, through=self._way(step)) for task in tasks]
        one_pass = Pass(work.batch, tuple(tasks), plan.said(all_steps=False), None)
        return from_table(plan.df.mapInArrow(one_pass, RESULT_DDL).toArrow())

    @contextmanager
    def _arrow_sized(self, spark: SparkSession, batch: BatchRef) -> Iterator[None]:
        """Let Spark measure what it sends to Python, row by row, only where rows may be large."""
        size = LogReader(self.log).size(batch.start, batch.end)
        large = size > _SMALL_BATCH or size > _SMALL_EVENT * (batch.end - batch.start)
        with self._alone:
            self._measured += large
            spark.conf.set(_ARROW_BYTES, _ARROW_BATCH if self._measured else _UNMEASURED)
        try:
            yield
        finally:
            with self._alone:
                self._measured -= large

    def _excluded(self, known: BatchState) -> list[Result]:
        """Poison events: the log withholds them from Spark, so their outcome is added here."""
        withheld = excluded(self.log) & known.owed
        return [
            Result(self.source, Kind.ERROR, sequence, "", self.letters.reason(self.source, sequence))
            for sequence in withheld
        ]

    # -- after the pass

    def _commit(self, name: str, batch: BatchRef, parts: Sequence[bytes]) -> str | None:
        try:
            with self._alone:
                self.sinks[name].sink.commit(batch, parts)
        except Discarded:
            raise
        except SinkError as error:
            return redact(str(error))
        return None

    def wait_s(self, batch: BatchRef, name: str, state: SinkState, took_s: float = 0.0) -> float:
        """How long to wait before one that failed is asked again. Raises GaveUp at the end of patience.

        `took_s`: what asking it took. One that took nothing is to be given the whole batch again, and what
        that costs is taken from those that work: so it rests for a multiple of it.
        """
        waits = Wait.parse(name)
        if waits is not None and self.follows(waits.step):
            if repeats_another(state.error):
                return next_wait_s(self.steps[waits.step].retry, state.attempts)
            logger.warning('step "%s" keeps rows of batch %s waiting: %s', waits.step, batch.key, state.error)
            return 1.0
        who = f'step "{waits.step}"' if waits else f'sink "{name}"'
        patience = self.control.patience_s
        if patience is not None and self._failing_s(batch.start, name, state) > patience:
            raise GaveUp(f"{who} still fails after {patience:.0f} s: {state.error}")
        if waits is None:
            retry = self.sinks[name].config.retry
        else:
            retry = self.steps[waits.step].retry if waits.step in self.steps else Retry()
        wait = next_wait_s(retry, state.attempts)
        if waits is None and state.owed is None:
            wait = max(wait, min(max(took_s - _CHEAP_S, 0.0) * _REST, retry.max_ms / 1000))
        if not state.error:  # it is to be given rows, and has not failed
            return wait
        logger.warning(
            "%s failed on batch %s (attempt %d, next in %.1f s): %s",
            who, batch.key, state.attempts, wait, state.error,
        )  # fmt: skip
        return wait


def _is_tried(state: SinkState) -> bool:
    """Whether a pass that a sink could have been part of has been made."""
    return bool(state.done or state.attempts or state.error)


def _sink_of(name: str) -> str:
    """The sink that rows are owed to, also where they wait for a step in front of it."""
    wait = Wait.parse(name)
    return name if wait is None else wait.sink


def owes(known: BatchState, sink: str, but: Collection[str] = ()) -> bool:
    """Whether a sink may still be given rows of a batch, from the pass or from a step they wait for.
    `but`: these steps do not count."""
    if known.settled:
        return False
    waits = {name: wait for name in known.sinks if (wait := Wait.parse(name)) is not None}
    names = (sink, *(name for name, wait in waits.items() if wait.sink == sink and wait.step not in but))
    return any(name in known.sinks and known.sinks[name].to_ask for name in names)


def touch(df: DataFrame) -> None:
    """Run a plan without any effect: of a stateful query Spark must see every partition of every batch."""
    if not df.sparkSession.sparkContext.master.startswith("local"):
        df = df.mapInArrow(_proved, df.schema)  # its state is on the shared disk as well
    df.write.format("noop").mode("overwrite").save()


def _proved(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    prove_shared()
    return rows


def _owed_rows(asked: Mapping[str, SinkState]) -> frozenset[int] | None:
    """The events that hold all that is asked for; None where somebody is asked for a whole batch."""
    if any(state.owed is None for state in asked.values()):
        return None
    return frozenset(row.sequence for state in asked.values() for row in state.owed or ()) or None


def _of_events(asked: Mapping[str, SinkState], events: frozenset[int]) -> dict[str, SinkState]:
    """Of what is asked for only the rows of some events."""
    rows = {n: tuple(row for row in state.owed or () if row.sequence in events) for n, state in asked.items()}
    return {name: replace(asked[name], owed=some) for name, some in rows.items() if some}


def _span(batch: BatchRef, asked: Mapping[str, SinkState], *, whole: bool) -> Span:
    """The part of the batch that holds the rows still owed."""
    rows = [row.sequence for state in asked.values() for row in state.owed or ()]
    if whole or not rows or any(state.owed is None for state in asked.values()):
        return batch.start, batch.end
    return min(rows), max(rows) + 1
