"""The spans of batches: `process`, and `send` to each sink; retries and dead letters are events in them.

Each traced event has spans of its own, in its own trace; all that is known of them is known of batches, and
of the rows that failed. Of a batch with several traced events there is one more `process` span, which links
to all of them; it is in no event's trace, because it would be in one only.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from signoff.engine.plan.task_report import ReportKind, TaskReport
from signoff.errors import LogError
from signoff.ledger.batch_state import BatchState, SinkState
from signoff.ledger.outcome import Outcome, RowOutcome
from signoff.ledger.sequences import from_bytes
from signoff.link.handover import HandoverConfig
from signoff.log import LogReader
from signoff.pipeline.model import SinkConfig, SourceConfig
from signoff.pipeline.trace_settings import TraceSettings
from signoff.sinks.contract import BatchRef
from signoff.traces.chosen import Chooser
from signoff.traces.export import Exporter, shared_exporter
from signoff.traces.ids import Context, TracedEvent, context_of_batch
from signoff.traces.spans import Happened, Where, span

logger = logging.getLogger(__name__)

_MOST_BATCHES = 256
"""Batches that are open at once; of more the oldest have no spans of later rounds."""
_MOST_HAPPENED = 32
_HANDS_ON = frozenset({"rabbitmq", "nats", "redis", "http", "pipeline", "handover"})
_ENDS = {
    Outcome.DEAD_LETTERED: "dead_letter",
    Outcome.REFUSED: "refused",
    Outcome.DROPPED: "dropped",
}


@dataclass(slots=True)
class _Event:
    """A traced event, on its way through a batch."""

    event: TracedEvent
    asked_ns: dict[str, int] = field(default_factory=dict)
    """By sink: when it was first asked."""
    sent: set[str] = field(default_factory=set)
    """Sinks of which there is a span."""
    happened: list[Happened] = field(default_factory=list)


@dataclass(slots=True)
class _Batch:
    began_ns: int
    events: dict[int, _Event]
    links: tuple[Context, ...]
    retries: dict[str, list[Happened]] = field(default_factory=dict)
    """By sink."""


class BatchTraces:
    """Of the batches of one source. Its threads may each do another batch."""

    def __init__(
        self,
        where: Where,
        sinks: Mapping[str, str],
        log: LogReader,
        chooser: Chooser,
        exporter: Exporter,
        *,
        received: bool,
    ) -> None:
        """`sinks`: their types. `received`: by an intake; else the events come from a log within the
        pipeline, and continue the span of whoever put them there."""
        self._where, self._sinks, self._received = where, sinks, received
        self._log, self._chooser, self._exporter = log, chooser, exporter
        self._open: dict[BatchRef, _Batch] = {}
        self._lock = threading.Lock()

    def carried(self, batch: BatchRef) -> dict[str, dict[str, str]]:
        """What the sinks hand on: by sink, the contexts of the traced events, by the ids of their rows."""
        try:
            return self._carried(self._known(batch))
        except Exception:  # noqa: BLE001 - no trouble of the batch
            self._say_failed()
            return {}

    def _carried(self, known: _Batch) -> dict[str, dict[str, str]]:
        hands_on = [name for name, type_ in self._sinks.items() if type_ in _HANDS_ON] if known.events else []
        return {
            name: {each.event.row_id: str(each.event.context("send", name)) for each in known.events.values()}
            for name in hands_on
        }

    def heard(
        self,
        batch: BatchRef,
        asked: Iterable[str],
        began: float,
        results: Sequence[TaskReport],
        outcomes: Sequence[RowOutcome],
        recorded: BatchState,
    ) -> None:
        """A round is over: what the sinks have said, what was decided, and how far the batch is now."""
        try:
            self._heard(batch, list(asked), int(began * 1e9), results, outcomes, recorded)
        except Exception:  # noqa: BLE001 - no trouble of the batch
            self._say_failed()

    def _say_failed(self) -> None:
        logger.warning("no spans are made of a batch", exc_info=logger.isEnabledFor(logging.DEBUG))

    def _heard(
        self,
        batch: BatchRef,
        asked: list[str],
        began_ns: int,
        results: Sequence[TaskReport],
        outcomes: Sequence[RowOutcome],
        recorded: BatchState,
    ) -> None:
        known = self._known(batch)
        if not known.events:
            return
        now = time.time_ns()
        for each in known.events.values():
            for sink in asked:
                each.asked_ns.setdefault(sink, began_ns)
        self._note_outcomes(known, outcomes, now)
        for sink in asked:
            self._note_sink(known, sink, results, recorded, now)
        self._note_waits(known, recorded, now)
        done = [each for each in known.events.values() if not _is_owed(each.event.sequence, recorded)]
        for each in done:
            self._process(known, batch, each, now)
            del known.events[each.event.sequence]
        if not known.events:
            self._end(known, batch, now)
        if recorded.settled:
            with self._lock:
                self._open.pop(batch, None)

    # -- what is heard

    def _note_outcomes(self, known: _Batch, outcomes: Sequence[RowOutcome], now: int) -> None:
        for outcome in outcomes:
            each, name = known.events.get(outcome.row.sequence), _ENDS.get(outcome.outcome)
            if each is None or name is None:
                continue
            happened = Happened(name, now, {"signoff.stage": outcome.stage})
            if outcome.stage in self._sinks:
                if outcome.stage not in each.sent:
                    self._send(known, each, outcome.stage, now, [happened], failed=True)
            elif len(each.happened) < _MOST_HAPPENED:
                each.happened.append(happened)

    def _note_sink(
        self, known: _Batch, sink: str, results: Sequence[TaskReport], recorded: BatchState, now: int
    ) -> None:
        said = [
            from_bytes(r.blob) for r in results if r.name == sink and r.kind == ReportKind.SIGNED and r.blob
        ]
        state = recorded.sinks.get(sink)
        for number, each in known.events.items():
            if sink in each.sent:
                continue
            owes = state is not None and not state.done and _owes(number, state, recorded)
            if not owes and any(number in signed for signed in said):
                self._send(known, each, sink, now, [], failed=False)
        if state is not None and state.to_ask and state.error:
            retries = known.retries.setdefault(sink, [])
            if len(retries) < _MOST_HAPPENED:
                retries.append(Happened("retry", now, {"signoff.attempt": state.attempts}))

    def _note_waits(self, known: _Batch, recorded: BatchState, now: int) -> None:
        """Steps that are tried again for an event."""
        for wait, state in recorded.waits.items():
            for number in {row.sequence for row in state.wanted_rows} & known.events.keys():
                happened = known.events[number].happened
                told = {"signoff.stage": wait.step, "signoff.attempt": state.attempts}
                known_already = any(each.attributes == told for each in happened)
                if state.attempts and not known_already and len(happened) < _MOST_HAPPENED:
                    happened.append(Happened("retry", now, told))

    # -- spans

    def _send(
        self, known: _Batch, each: _Event, sink: str, now: int, last: list[Happened], *, failed: bool
    ) -> None:
        each.sent.add(sink)
        type_ = self._sinks[sink]
        attributes = {"signoff.event.id": each.event.event_id, "signoff.sink": sink}
        made = span(
            self._exporter, Where(sink, type_), "send", each.event.context("send", sink),
            each.event.context("process"), each.asked_ns.get(sink, known.began_ns), now,
            kind="producer" if type_ in _HANDS_ON else "client", attributes=attributes,
            happened=[*known.retries.get(sink, ()), *last], failed=failed,
        )  # fmt: skip
        self._exporter.put([made])

    def _process(self, known: _Batch, batch: BatchRef, each: _Event, now: int) -> None:
        event, alone = each.event, len(known.links) == 1
        attributes: dict[str, str | int] = {"signoff.event.id": event.event_id}
        if alone:
            attributes |= _size_of(batch)
        links = [] if alone else [self._batch_context(batch, known)]
        failed = any(happened.name in ("dead_letter", "refused") for happened in each.happened)
        made = span(
            self._exporter, self._where, "process", event.context("process"),
            event.context("receive") if self._received else event.parent, known.began_ns, now,
            kind="consumer", attributes=attributes, happened=each.happened, links=links, failed=failed,
        )  # fmt: skip
        self._exporter.put([made])

    def _end(self, known: _Batch, batch: BatchRef, now: int) -> None:
        if len(known.links) > 1:
            made = span(
                self._exporter, self._where, "process", self._batch_context(batch, known), None,
                known.began_ns, now, kind="consumer", attributes=_size_of(batch), links=known.links,
            )  # fmt: skip
            self._exporter.put([made])

    @staticmethod
    def _batch_context(batch: BatchRef, known: _Batch) -> Context:
        return context_of_batch(batch.source, batch.start, batch.end, known.links[0])

    # -- which events

    def _known(self, batch: BatchRef) -> _Batch:
        with self._lock:
            known = self._open.get(batch)
        if known is not None:
            return known
        try:
            events = [] if batch.replay else self._chooser.choose(self._log, batch.start, batch.end)
        except LogError:
            events = []
        links = tuple(
            event.context("receive") if self._received or event.parent is None else event.parent
            for event in events
        )
        known = _Batch(time.time_ns(), {event.sequence: _Event(event) for event in events}, links)
        with self._lock:
            self._open[batch] = known
            while len(self._open) > _MOST_BATCHES:
                del self._open[next(iter(self._open))]
        return known


def _is_owed(number: int, recorded: BatchState) -> bool:
    """Whether somebody is still to be asked for the event."""
    if recorded.settled:
        return False
    return any(_owes(number, state, recorded) for state in recorded.debtors.values() if not state.done)


def _owes(number: int, state: SinkState, recorded: BatchState) -> bool:
    return state.to_ask and number in state.owes(recorded.owed)


def _size_of(batch: BatchRef) -> dict[str, int]:
    return {"messaging.batch.message_count": batch.end - batch.start}


def traces_of(
    settings: TraceSettings,
    pipeline: str,
    source: str,
    config: SourceConfig,
    sinks: Mapping[str, SinkConfig],
    log: LogReader,
) -> BatchTraces:
    """The spans of a source's batches. A name with a dot is of a log within the pipeline."""
    chooser = Chooser(source, settings, keeps_ids=bool(getattr(config, "keeps_ids", False)))
    types = {name: _type_of(sink) for name, sink in sinks.items()}
    exporter = shared_exporter(settings, pipeline, "engine")
    return BatchTraces(Where(source, config.type), types, log, chooser, exporter, received="." not in source)


def _type_of(config: SinkConfig) -> str:
    """As users know it."""
    if isinstance(config, HandoverConfig) and config.outside:
        return "job" if config.by_invoker else "pipeline"
    return config.type
