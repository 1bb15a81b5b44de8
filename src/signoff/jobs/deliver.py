"""The second half of a run: its rows go into the logs, the engine delivers them, the sinks finish.

    computed ─► appending ─► delivering ─► every row settled ─► reports published ─► their editions settled
             ─► every sink finished ─► done

The order is the promise. A kill between any two steps leads to the same step being done again, by whoever
next delivers rows of this job; each can be repeated. A run is done only when every sink has finished.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from pyspark.sql import SparkSession

from signoff.engine.batch.interrupts import Interrupts
from signoff.engine.engine import Engine
from signoff.engine.state_dir.identity import StateIdentity
from signoff.errors import PermanentError, SignoffError, TransientError
from signoff.installed_types import build
from signoff.jobs import editions, owners, repeats
from signoff.jobs.compute import require_right
from signoff.jobs.missing import missing_rows
from signoff.jobs.outputs import EDITIONS, append, next_number, second_half
from signoff.jobs.parameters import from_json
from signoff.jobs.records import Record, Records
from signoff.jobs.replay import RunReplayer
from signoff.jobs.state_dir import forget_directory, run_directory
from signoff.ledger.engine_lock import engine_lock
from signoff.ledger.ledger import Ledger
from signoff.log import LogReader
from signoff.pipeline.edition_rules import read_publishers
from signoff.pipeline.graph import Graph
from signoff.pipeline.model import SinkConfig
from signoff.pipeline.secrets import redact
from signoff.sinks.contract import RunRef, Sink

logger = logging.getLogger(__name__)
T = TypeVar("T")

_OUTCOMES = ("delivered", "dropped", "dead_lettered", "refused", "expired")


class StillOwed(SignoffError):
    """Rows of a run, or its end, wait for a sink; the next try goes on."""


class Refused(SignoffError):
    """A sink refused rows of a run."""


class DeliveryEngine(Engine):
    """Ends when everything in the logs is settled, and every letter that was to be replayed."""

    on_tick: Callable[[Mapping[str, int]], None] = staticmethod(lambda _: None)
    _tended = False

    def _tend(self) -> None:
        super()._tend()
        self._tended = True
        self.on_tick({name: self.ledger.settled_upto(name) for name in self.queries})

    def _finished(self) -> bool:
        return self.control.overdue or (self._tended and self.idle)


@dataclass
class JobDelivery:
    """Delivers runs of one job, while the caller holds the lock of its state directory."""

    spark: SparkSession
    records: Records
    control: Interrupts
    on_tick: Callable[[Record, Mapping[str, int]], None] = lambda *_: None
    checked: str = ""
    """The run that this process has just computed, and checked before."""

    def deliver(self, graph: Graph, record: Record) -> Record:
        """From `computed`, or wherever it was left, to `done`. Raises StillOwed, Refused, SignoffError."""
        with engine_lock(graph.state):
            columns = {name: output.columns for name, output in record.outputs.items()}
            half = second_half(graph, columns)
            self._require_same(half, record)
            self._belongs(half)
            if record.state == "computed":
                if record.id != self.checked:  # it may have been computed by a job that has changed since
                    require_right(half, self.spark)
                owners.claim(half, record)
            record = self._into_logs(half, record)
            published = read_publishers(graph)
            if not editions.noted(record):
                record = self._settled(half, record)
            # Of a run that goes on, before its editions are settled: a file that is gone is made again.
            self._finish(half, record, published)
            if published or editions.noted(record):
                record = self._hand_over(half, record, published)
            self._finish(half, record, [name for name in half.sinks if name not in published])
            for each in self.records.editions(record.key):  # of those that have failed as well
                forget_directory(half.state, each.id)
                repeats.forget(half.state, each)
            return record

    def _settled(self, half: Graph, record: Record) -> Record:
        """Every row of the run that is in a log has its outcome."""
        self._settle(half, record, self.run_ref(half, record))
        outcome = outcome_of(half.state, record)
        record = self.records.change(record, outcome=outcome)
        if outcome.get("refused"):
            raise Refused(f"{outcome['refused']} rows were refused; signoff status FILE says by which sink")
        return record

    def _hand_over(self, half: Graph, record: Record, published: Sequence[str]) -> Record:
        """What was published goes to those that read it."""
        outputs = dict(record.outputs)
        for name in published:
            if (log := name + EDITIONS) not in outputs:
                run = self._run_of(half, record, name)
                row = self._asked(half, name, run, lambda sink, run=run: sink.edition(run))  # type: ignore[misc]
                number = next_number(half.state / "log" / log)
                with Ledger(half.state / "ledger.db") as ledger:
                    before = _totals(ledger, log)
                outputs[log] = replace(editions.keep(half, record, name, row), first=number, before=before)
        if outputs.keys() != record.outputs.keys():
            record = self.records.change(record, outputs=outputs)
        editions.put(half, record)
        return self._settled(half, record)

    def run_ref(self, graph: Graph, record: Record) -> RunRef:
        """The run as its sinks know it."""
        begin, end = (None if each is None else datetime.fromtimestamp(each, UTC) for each in record.period)
        return RunRef(
            id=record.id,
            bounded=True,
            key=record.key,
            began_at=datetime.fromtimestamp(record.began_at, UTC),
            parameters=from_json(graph.settings.parameters, record.parameters),
            period=(begin, end),
            complete_to=record.complete_to,
            ranges=record.ranges,
            editions={name: name.removesuffix(EDITIONS) for name in editions.noted(record)},
            earlier=tuple(
                each.ranges
                for each in self.records.editions(record.key)
                if each.edition < record.edition and each.ranges
            ),
        )

    def _before(self, record: Record) -> Record | None:
        """The edition before."""
        known = self.records.editions(record.key)
        return next((each for each in known if each.edition == record.edition - 1), None)

    def _require_same(self, half: Graph, record: Record) -> None:
        """The rows are of the tables and queries that the job had then. Without this, those of one that is
        gone would stay in a log that nobody reads, and the run would be called done."""
        with Ledger(half.state / "ledger.db") as ledger:
            for name in record.outputs.keys() - half.sources.keys():
                left = record.outputs[name].rows
                if (known := record.ranges.get(name)) is not None:
                    left = known[1] - max(known[0], ledger.settled_upto(name))
                if left > 0:
                    raise StillOwed(
                        f'{left} rows of "{name}" are not delivered, and nothing in the job reads them any '
                        f"more; put it back until they are, or give them up: signoff sources drop FILE {name}"
                    )
        new = {name for name in half.sources.keys() - record.outputs.keys() if not name.endswith(EDITIONS)}
        if new:
            raise StillOwed(
                f'the rows were made when "{min(new)}" was not in the job; put the job back as it was until '
                "this run is done"
            )

    def _belongs(self, half: Graph) -> None:
        with Ledger(half.state / "ledger.db") as ledger:
            belonging = StateIdentity(half.state, ledger, LogReader)
            belonging.refuse_copy(half.base, {name: node.config for name, node in half.sinks.items()})
            belonging.check(half.sources.keys())
            belonging.begin(half.sources)

    def _into_logs(self, half: Graph, record: Record) -> Record:
        logs = half.state / "log"
        if record.state == "computed":
            with Ledger(half.state / "ledger.db") as ledger:
                outputs = {
                    name: replace(output, first=next_number(logs / name), before=_totals(ledger, name))
                    for name, output in record.outputs.items()
                }
            repeats.note(half, replace(record, outputs=outputs), self._before(record))
            record = self.records.change(record, state="appending", outputs=outputs)
        if record.state == "appending":
            for name, output in record.outputs.items():
                append(logs / name, output, run_directory(half.state, record.id) / "parts")
            record = self.records.change(record, state="delivering")
        if not editions.noted(record):
            forget_directory(half.state, record.id)
        return record

    def _settle(self, half: Graph, record: Record, run: RunRef) -> None:
        engine = DeliveryEngine(half, self.control, self.spark)
        engine.replayer = RunReplayer(engine.replayer.parts, self.records, record)
        engine.on_tick = lambda settled: self.on_tick(record, settled)
        try:
            again = repeats.of(half, record)
            for name, entry in engine.sinks.items():
                entry.sink.begin(replace(run, repeats=again.get(name, {})))
            gave_up = engine.run()
            if gave_up is None and not engine.idle:
                gave_up = "it was stopped before all rows were settled"
        finally:
            engine.close()
        if gave_up is not None:
            raise StillOwed(f"{redact(gave_up)}; run it again to resume")

    def _finish(self, half: Graph, record: Record, names: Iterable[str]) -> None:
        for name in names:
            run = self._run_of(half, record, name)
            self._asked(half, name, run, lambda sink, run=run: sink.finish(run))  # type: ignore[misc]

    def _run_of(self, half: Graph, record: Record, sink: str) -> RunRef:
        """The run as this sink knows it, with the rows that it does not have."""
        missing = missing_rows(half, record).get(sink, ())
        return replace(self.run_ref(half, record), missing=missing)

    def _asked(self, half: Graph, name: str, run: RunRef, ask: Callable[[Sink], T]) -> T:
        """What a sink does at the end of a run; what is wrong for the moment is tried again."""
        config = half.nodes[name].config
        assert isinstance(config, SinkConfig)
        sink: Sink = build(config, half.base)
        sink.begin(run)
        began, attempts = time.monotonic(), 0
        try:
            while True:
                try:
                    return ask(sink)
                except PermanentError as error:
                    raise Refused(f'sink "{name}" cannot finish the run: {redact(str(error))}') from error
                except TransientError as error:
                    attempts += 1
                    patience = self.control.patience_s
                    late = patience is not None and time.monotonic() - began > patience
                    if late or self.control.stopping or attempts == config.retry.attempts:
                        raise StillOwed(f'sink "{name}" has not finished: {redact(str(error))}') from error
                    self.control.wait(config.retry.wait_s(attempts))
        finally:
            sink.release()


def outcome_of(state: Path, record: Record) -> dict[str, int]:
    """What became of the rows of a run."""
    found = dict.fromkeys(_OUTCOMES, 0)
    with Ledger(state / "ledger.db", readonly=True) as ledger:
        for name, output in record.outputs.items():
            counts = ledger.counts_between(name, *output.range)
            if counts is None:  # so many rows that the ledger has folded some: all that changed meanwhile
                totals = _totals(ledger, name)
                counts = {word: totals[word] - output.before.get(word, 0) for word in _OUTCOMES}
            for word in _OUTCOMES:
                found[word] += counts[word]
    return found


def _totals(ledger: Ledger, source: str) -> dict[str, int]:
    account = ledger.books(source).account(0)
    return {word: int(getattr(account, word)) for word in _OUTCOMES}
