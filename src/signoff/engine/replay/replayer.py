"""Replaying dead letters: each goes again only where it failed, under its old id.

A letter of a sink goes to that sink alone, one of a transform (or of the source) to everything behind
it; of an unfolded event only the row that failed goes again, with the rows made from it. The event is
taken from the letter, so it does not matter that the log has been trimmed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa
from pyroaring import BitMap64

from signoff.engine.batch.interrupts import Interrupts
from signoff.engine.batch.verdict import Round, judge
from signoff.engine.delivery.link_writers import claim_links
from signoff.engine.delivery.open_sinks import sink_task
from signoff.engine.delivery.sink_pass import Pass
from signoff.engine.delivery.surprises import Surprises
from signoff.engine.parts import build_parts
from signoff.engine.plan.compile import compile_source
from signoff.engine.plan.failure_reasons import explained
from signoff.engine.plan.kept_rows import KeptRows
from signoff.engine.plan.plan import Plan
from signoff.engine.plan.task_report import RESULT_DDL, ReportKind, TaskReport, from_table
from signoff.engine.query.base import Shared, stage_policies, uniting_steps, windows_at
from signoff.engine.replay.batch_name import new_replay, replay_name, replay_ref
from signoff.engine.replay.verdict import DELIVERED, ReplayReports, Verdict, judge_letters
from signoff.engine.spark.cluster import Cluster
from signoff.engine.spark.stack_traces import last_line
from signoff.errors import Discarded, SinkError, TransientError
from signoff.ledger.batch_state import SinkState, Untried
from signoff.ledger.dead_letters import DeadLetters, HandedOn, close_letters
from signoff.ledger.engine_lock import engine_lock
from signoff.ledger.ledger import Ledger
from signoff.ledger.letter import DeadLetter
from signoff.ledger.outcome import Outcome, Resolution, RowRef, is_united
from signoff.ledger.run_lock import RunLock
from signoff.link.handover import HandoverConfig
from signoff.pipeline.graph import Graph
from signoff.pipeline.model import OnFailure, SinkConfig, SourceConfig
from signoff.pipeline.secrets import redact
from signoff.sinks.contract import BatchRef
from signoff.transforms.frame import EDITION, MARK

logger = logging.getLogger(__name__)

_AT_ONCE = 5_000
_BYTES_AT_ONCE = 64 * 1024**2
"""Of payloads in one pass. One that was interrupted is done again with the same letters, and rows made of
several events go together, however large they are."""
_UNDO = "put it back to replay this, or drop it"


def replay_now(graph: Graph) -> int:
    """Do the replays that were asked for, without a run; returns how many letters were resolved."""
    with RunLock(graph.state), engine_lock(graph.state):
        cluster = Cluster.start(graph)
        try:
            with (
                Ledger(graph.state / "ledger.db") as ledger,
                DeadLetters(graph.state / "dead_letters.db") as letters,
            ):
                claim_links(graph, ledger)
                parts = build_parts(graph, cluster.spark, ledger, letters, Interrupts())
                try:
                    return Replayer(parts).run()
                finally:
                    for part in parts:
                        for entry in part.sinks.values():
                            entry.sink.release()
                        if part.repeats is not None:
                            part.repeats.close()
        finally:
            cluster.stop()


class Replayer:
    """Does the replays that were asked for, between the batches of a run."""

    def __init__(self, parts: Sequence[Shared]) -> None:
        self.parts = parts
        self.shared = parts[0]
        """The part whose letters are being replayed."""
        self._committing = False
        """A sink may hold rows of the pass that is being made, under the name of its batch."""
        self._surprises = Surprises()

    def run(self, over: Callable[[], bool] = lambda: False) -> int:
        """Replay what is requested, until it is `over`; returns how many letters were tried."""
        tried = 0
        while not over() and (number := self.step()):
            tried += number
        return tried

    def step(self) -> int:
        """Replay as many of the letters that are requested as go in one pass; returns how many, 0 if none
        is left. Payloads are loaded of these only."""
        store = self.shared.letters
        groups: dict[tuple[str, str, str], list[DeadLetter]] = {}
        for letter in store.whole(store.with_batches(self._requested(), brief=True), brief=True):
            if letter.status == "replaying":
                groups.setdefault((letter.source, letter.stage, letter.batch), []).append(letter)
        for (source, stage, batch), letters in groups.items():
            owners = [part for part in self.parts if source in part.graph.sources]
            self.shared = owners[0] if owners else self.parts[0]
            for part in [letters] if batch else self._apart(source, letters):
                divisible = not batch and not any(is_united(letter.child) for letter in part)
                if loaded := self._loaded(part, _BYTES_AT_ONCE if divisible else None):
                    self._group(source, stage, loaded)
                    return len(loaded)
        return 0

    def _requested(self) -> list[DeadLetter]:
        """Those to replay, the oldest first, without payloads."""
        return self.shared.letters.replays_requested(limit=_AT_ONCE, brief=True)

    def _loaded(self, letters: Sequence[DeadLetter], most_bytes: int | None) -> list[DeadLetter]:
        """Letters with their payloads: the first of them up to so many bytes, and at least one. Of one
        that is dropped meanwhile nothing is replayed."""
        loaded: list[DeadLetter] = []
        size = 0
        for letter in letters:
            for whole in self.shared.letters.get(*letter.key):
                size += len(whole.payload)
                if loaded and most_bytes is not None and size > most_bytes:
                    return loaded
                if whole.status == "replaying":
                    loaded.append(whole)
        return loaded

    def _apart(self, source: str, letters: Sequence[DeadLetter]) -> list[list[DeadLetter]]:
        """Letters that may be replayed in one pass. Rows made of several events may only if their events were
        in one batch: those of two would be united with each other. An event and what was resubmitted for it
        have the same number."""
        parts: dict[object, list[DeadLetter]] = {}
        for letter in letters:
            part: object = letter.edition
            if is_united(letter.child):
                batch = self.shared.ledger.batch_of(source, letter.sequence)
                part = letter.child if batch is None else batch.ref.start
            parts.setdefault(part, []).append(letter)
        return list(parts.values())

    def _group(self, source: str, stage: str, letters: Sequence[DeadLetter]) -> None:
        graph = self.shared.graph
        if source not in graph.sources or stage not in graph.nodes:
            reason = f'"{stage if source in graph.sources else source}" is no longer in the pipeline'
            self._fail(letters, f"{reason}; {_UNDO}")
            return
        if stage != source and stage not in graph.downstream(source):
            self._fail(letters, f'"{stage}" gets no rows of "{source}" any more; {_UNDO}')
            return
        if cut := [letter for letter in letters if letter.incomplete]:
            for letter in cut:
                self._fail([letter], f"it cannot be replayed: {letter.incomplete}")
            letters = [letter for letter in letters if not letter.incomplete]
            if not letters:
                return
        # What is united behind the stage has ids that cannot be told from the letters': then no other rows
        # than theirs go in, and all that comes out is theirs.
        self._replay(source, stage, letters, anew=self._unites_behind(stage))

    def _replay(self, source: str, stage: str, letters: Sequence[DeadLetter], anew: bool) -> None:
        self._committing = False
        try:
            verdict, reports = self._deliver(source, stage, letters, anew)
        except Exception as error:  # noqa: BLE001 - whatever happens, the letters stay and say why
            reason = last_line(error)
            logger.warning("replaying %d letters of %s failed: %s", len(letters), stage, reason)
            self._fail(letters, reason, broken_off=self._committing)
            return
        gone = [] if anew else _not_made(letters, verdict)
        self._close(judge_letters(source, [x for x in letters if x not in gone], verdict, reports))
        if gone:  # the pipeline has changed, and unites their events in another way
            self._replay(source, stage, gone, anew=True)

    def _deliver(
        self, source: str, stage: str, letters: Sequence[DeadLetter], anew: bool
    ) -> tuple[Round, ReplayReports]:
        graph = self.shared.graph
        batch = self._batch_of(source, letters)
        windows = windows_at(graph, source, self.shared.sinks).values()
        for window in windows:
            window.stamp(batch)  # nothing is closed until its rows are there
        try:
            return self._deliver_batch(source, stage, letters, anew, batch)
        finally:
            for window in windows:
                window.forget_batch(batch)

    def _batch_of(self, source: str, letters: Sequence[DeadLetter]) -> BatchRef:
        """The batch they are replayed as: the one they were claimed for if that was interrupted, also if some
        of its letters were dropped since. If it is known what became of others of it, it is another one: it
        must not take the place of their rows."""
        store, names = self.shared.letters, {letter.batch for letter in letters}
        if len(names) == 1 and (name := names.pop()) and not store.is_resolved(source, name):
            return replay_ref(source, name)
        batch = new_replay(source, letters)
        store.claim(letters, replay_name(batch))
        return batch

    def _deliver_batch(
        self, source: str, stage: str, letters: Sequence[DeadLetter], anew: bool, batch: BatchRef
    ) -> tuple[Round, ReplayReports]:
        graph = self.shared.graph
        is_sink = graph.nodes[stage].kind == "sink"
        plan = compile_source(
            graph,
            source,
            self.shared.spark.createDataFrame(self._events(source, letters)),
            sinks={stage} if is_sink else None,
            entry=None if is_sink else stage,
            rows={(letter.sequence, letter.child) for letter in letters} if anew else None,
            tells=True,
            replay=True,
            kept=KeptRows(graph.state),
        )
        assert plan is not None
        rows = None if anew else tuple(RowRef(letter.sequence, letter.child) for letter in letters)
        asked = dict.fromkeys(plan.sinks, Untried(rows))
        results = self._pass(plan, batch, asked, named_here=is_sink)
        watching = frozenset(name for name in asked if self.shared.sinks[name].sink.observes)
        return self._judge(source, batch, asked, results), ReplayReports(
            graph, stage, results, anew, watching
        )

    def _unites_behind(self, stage: str) -> bool:
        graph = self.shared.graph
        is_step = graph.nodes[stage].kind == "transform"
        return is_step and bool(({stage} | graph.downstream(stage)) & uniting_steps(graph))

    def _pass(
        self, plan: Plan, batch: BatchRef, asked: Mapping[str, SinkState], *, named_here: bool
    ) -> list[TaskReport]:
        tasks = tuple(
            sink_task(name, self.shared.sinks[name], state, plan, named_here=named_here)
            for name, state in asked.items()
        )
        one_pass = Pass(batch, tasks, plan.reported_errors(all_steps=True), None)
        with plan.ready():
            table = plan.df.mapInArrow(one_pass, RESULT_DDL).toArrow()
            results = self._surprises.take(explained(from_table(table), plan.attempts))
        # Nobody asks again: what a step cannot do now has failed.
        return [replace(r, kind=ReportKind.ERROR) if r.kind == ReportKind.WAITS else r for r in results]

    def _judge(
        self, source: str, batch: BatchRef, asked: Mapping[str, SinkState], results: list[TaskReport]
    ) -> Round:
        """As for a batch, but one round only: what is still owed after it has failed."""
        sinks = self.shared.sinks

        def commit(name: str, parts: Sequence[bytes]) -> str | None:
            self._committing = True
            try:
                sinks[name].sink.commit(batch, parts)
            except Discarded:
                raise
            except SinkError as error:
                return redact(str(error))
            return None

        entries: dict[str, tuple[SinkConfig, SinkState]] = {}
        for name, state in asked.items():
            config = sinks[name].config
            last = config.retry.model_copy(update={"attempts": 1})
            entries[name] = (config.model_copy(update={"retry": last, "on_failure": "dead_letter"}), state)
        policies: dict[str, OnFailure] = dict.fromkeys(
            stage_policies(self.shared.graph, source), "dead_letter"
        )
        atomic = {name for name in asked if sinks[name].sink.atomic}
        links = {
            name: source in entry.config.awaited_by
            for name, entry in sinks.items()
            if isinstance(entry.config, HandoverConfig)
        }
        taking_back = {name for name in asked if sinks[name].sink.takes_back}
        verdict = judge(results, entries, policies, commit, atomic, 0.0, links, taking_back)
        for name, after in verdict.sinks.items():
            if after.to_ask:  # it may hold rows of a commit that failed, which no other batch replaces
                raise TransientError(f'sink "{name}": {after.error}')
        return verdict

    def _close(self, verdict: Verdict) -> None:
        """Rows that are in another log are not decided yet: see `feedback.replays`."""
        handed: list[HandedOn] = []
        for sinks, waiting in verdict.handed.items():
            handed.append(([x for x in waiting if x.key in verdict.delivered], sinks, DELIVERED))
            handed.append(([x for x in waiting if x.key not in verdict.delivered], sinks, ""))
        shared = self.shared
        close_letters(shared.ledger, shared.letters, verdict.resolutions, verdict.further, handed)

    def _fail(self, letters: Sequence[DeadLetter], reason: str, *, broken_off: bool = False) -> None:
        """`broken_off`: rows of them may be at some sinks, under the name of the batch that they keep."""
        failed = [Resolution(x.event_id, x.stage, Outcome.DEAD_LETTERED, reason) for x in letters]
        close_letters(self.shared.ledger, self.shared.letters, failed, broken_off=broken_off)

    def _events(self, source: str, letters: Sequence[DeadLetter]) -> pa.Table:
        """The letters' events in the columns of the log's Spark source, each event once."""
        config = self.shared.graph.nodes[source].config
        assert isinstance(config, SourceConfig)
        events = list({letter.sequence: letter for letter in letters}.values())
        payloads, errors = [], []
        for event in events:
            payload, error = _decoded(event.payload, config.encoding)
            payloads.append(payload)
            errors.append(error)
        times = [datetime.fromtimestamp(event.received_at or event.at, UTC) for event in events]
        return pa.table(
            {
                "_sequence": pa.array([event.sequence for event in events], pa.int64()),
                "payload": pa.array(payloads, pa.binary() if config.encoding == "binary" else pa.string()),
                "headers": pa.array(
                    [list(event.headers.items()) for event in events], pa.map_(pa.string(), pa.string())
                ),
                "message_id": pa.array([event.message_id for event in events], pa.string()),
                "received_at": pa.array(times, pa.timestamp("us", "UTC")),
                "error": pa.array(errors, pa.string()),
                **({EDITION: pa.repeat(events[0].edition, len(events))} if events[0].edition else {}),
                **self._stamps(source, len(events)),
            }
        )

    def _stamps(self, source: str, number: int) -> dict[str, pa.Array]:
        """What is replayed comes to windows as what comes now does: it may be late."""
        windows = windows_at(self.shared.graph, source, self.shared.sinks)
        return {
            MARK + name: pa.repeat(pa.scalar(window.marks.mark, pa.int64()), number)
            for name, window in windows.items()
        }


def _decoded(payload: bytes, encoding: str) -> tuple[str | bytes | None, str | None]:
    if encoding == "binary":
        return payload, None
    try:
        return payload.decode(), None
    except UnicodeDecodeError as error:
        return None, f"payload is not valid UTF-8 (at byte {error.start})"


def _not_made(letters: Sequence[DeadLetter], verdict: Round) -> list[DeadLetter]:
    """The letters of rows made of several events of which nothing was reported: there is no such row."""
    reported = verdict.delivered | verdict.owed  # those that were handed on are owed
    reported |= BitMap64(outcome.row.sequence for outcome in verdict.outcomes)
    return [letter for letter in letters if is_united(letter.child) and letter.sequence not in reported]
