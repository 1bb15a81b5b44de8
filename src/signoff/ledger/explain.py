"""Explain: where one event is, why it is not acknowledged, and what became of each of its rows.

Only exceptions are recorded by row, so a sink that is done and named no row of the event has nothing
left to do for it: it took what it was given, or was given nothing.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Protocol

from signoff.ledger.batch_state import REMOVED, Debtor, OwesAll, SinkState, Wait, sink_of
from signoff.ledger.dead_letters import DeadLetters
from signoff.ledger.ledger import Ledger
from signoff.ledger.letter import DeadLetter
from signoff.ledger.outcome import BUFFER, EventId, Outcome
from signoff.ledger.row_records import RowRecord
from signoff.pipeline.graph import Graph

State = Literal[
    "unknown",
    "waiting",
    "in flight",
    "delivered",
    "dropped",
    "dead_lettered",
    "refused",
    "expired",
    "settled",
]
"""The final outcomes, and: `unknown` (never received), `waiting` (in the log, in no batch yet),
`in flight` (a sink owes it), `settled` (so long ago that only the counts are kept)."""


class EventLog(Protocol):
    """What explain needs of a log; `signoff.log.LogReader` is one."""

    def head(self) -> int: ...
    def lookup(self, sequences: Iterable[int]) -> dict[int, dict[str, Any]]: ...


@dataclass(frozen=True, slots=True)
class Line:
    """One stage's part in the event's story."""

    stage: str
    event_id: str
    state: str
    """An outcome, `owed`, `buffered`, `waits` (for a step, before a sink can get it), or `done`."""
    text: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """The answer to "where is this event?"."""

    event_id: str
    state: State
    acknowledged: bool | None
    """Whether the source may forget it; None where the source cannot be told, or the event is unknown."""
    why: str
    """One sentence: why it is, or is not, acknowledged."""
    lines: tuple[Line, ...] = ()
    received_at: str | None = None
    payload: str | None = None
    payload_encoding: str = "utf-8"
    headers: Mapping[str, str] = field(default_factory=dict)
    letters: tuple[DeadLetter, ...] = ()


WaitsFor = Callable[[EventId], Mapping[str, str]]
"""Why an event waits at a step for another event, by step; nothing for steps at which it does not."""


def explain(
    graph: Graph,
    event_id: str,
    open_log: Callable[[Path], EventLog],
    waits_for: WaitsFor | None = None,
) -> Explanation:
    """Explain an event of a pipeline: `explain(graph, "incoming/17", LogReader)`. Changes nothing.

    Raises ValueError when the text is not an event id.
    """
    event = EventId.parse(event_id)
    state = graph.state
    with (
        Ledger(state / "ledger.db", readonly=True) as ledger,
        DeadLetters(state / "dead_letters.db", readonly=True) as letters,
    ):
        known = event.source in graph.sources or event.source in ledger.sources()
        if not known:
            names = ", ".join(graph.sources)
            return Explanation(
                event_id, "unknown", None, f'there is no source "{event.source}" (have: {names})'
            )
        log = open_log(state / "log" / event.source)
        followed = waits_for(event) if waits_for else {}
        return _Story(graph, event, ledger, letters, log, followed).tell()


class _Story:
    def __init__(
        self,
        graph: Graph,
        event: EventId,
        ledger: Ledger,
        letters: DeadLetters,
        log: EventLog,
        followed: Mapping[str, str],
    ) -> None:
        self._followed = followed
        self._graph, self._event, self._ledger, self._log = graph, event, ledger, log
        source, sequence = event.source, event.sequence
        self._batch = ledger.batch_of(source, sequence)
        self._folded = self._batch is None and sequence < ledger.folded_upto(source)
        self._rows = ledger.rows(source, sequence)
        self._letters = letters.of_origin(source, sequence)
        known = {letter.key for letter in self._letters}
        stand_for_it = dict.fromkeys((row.letter, row.stage) for row in self._rows if row.letter)
        self._further = [letter for key in stand_for_it if key not in known for letter in letters.get(*key)]
        """Letters of what was made of it and others."""

    def tell(self) -> Explanation:
        state = self._state()
        acknowledged, why = self._answer(state)
        found = {} if state == "unknown" else self._log.lookup([self._event.sequence])
        content = found.get(self._event.sequence) or self._content_of_letter()
        received_at = content.get("received_at")
        text, encoding = as_text(content["payload"]) if "payload" in content else (None, "utf-8")
        return Explanation(
            str(self._event), state, acknowledged, why, tuple(self._lines()),
            received_at.isoformat() if received_at else None, text, encoding,
            content.get("headers") or {}, (*self._letters, *self._further),
        )  # fmt: skip

    def _state(self) -> State:
        standing = {row.outcome for row in self._rows if not row.resolved}
        if Outcome.EXPIRED in standing:
            return "expired"
        if self._batch is not None and self._event.sequence in self._batch.owed:
            return "in flight"
        if Outcome.REFUSED in standing:
            return "refused"
        if Outcome.DEAD_LETTERED in standing:
            return "dead_lettered"
        if self._batch is None:
            if self._folded:
                return "settled"
            return "waiting" if self._event.sequence < self._log.head() else "unknown"
        return "delivered" if self._event.sequence in self._batch.delivered else "dropped"

    def _answer(self, state: State) -> tuple[bool | None, str]:
        source = self._event.source
        if state == "unknown":
            return None, f"{source} has received {self._log.head()} events, this one is not among them"
        node = self._graph.sources.get(source)
        if node is not None and not self._graph.acknowledges(source):
            if getattr(node.config, "can_acknowledge", True):
                return True, "acknowledgements are off: the source was told when the event was in the log"
            return None, f"{source} cannot be acknowledged; the event is {state.replace('_', '-')}"
        if state == "waiting":
            return False, "it is in the log and waits for the next batch"
        if state == "in flight":
            return False, self._why_in_flight()
        if state == "refused":
            return False, f"the source is given a negative answer: {self._reason(Outcome.REFUSED)}"
        if state == "expired":
            return False, f"the source stopped waiting: {self._reason(Outcome.EXPIRED)}"
        return True, self._why_settled(state)

    def _why_settled(self, state: State) -> str:
        """What is left out of an event that was delivered or dropped is named by its rows."""
        given_up = [row for row in self._rows if _is_given_up(row)]
        if not given_up or state not in ("delivered", "dropped"):
            return _SETTLED[state]
        ends = dict.fromkeys(f"at {row.stage}: {row.reason}" for row in given_up)
        if state == "delivered":
            return f"a part of it was delivered, and a part was given up ({'; '.join(ends)})"
        return f"what was to be delivered of it was given up ({'; '.join(ends)})"

    def _why_in_flight(self) -> str:
        assert self._batch is not None
        owing = [
            self._owing(who, state) for who, state in self._debtors() if not state.done and self._owes(state)
        ]
        if owing:
            return "; ".join(dict.fromkeys(owing))
        return f"its batch [{self._batch.ref.start}, {self._batch.ref.end}) is being worked on"

    def _debtors(self) -> list[tuple[Debtor, SinkState]]:
        """Sinks, and steps in front of them, as people read them: a sink, then the steps it waits for."""
        assert self._batch is not None
        return sorted(self._batch.debtors.items(), key=lambda one: str(one[0]))

    def _owing(self, who: Debtor, state: SinkState) -> str:
        if isinstance(who, Wait):
            if who.step in self._followed:
                return f"at step {who.step} it {self._followed[who.step]}"
            return _waits_for(who.step, state)
        return self._owing_sink(who, state)

    def _owing_sink(self, name: str, sink: SinkState) -> str:
        if self._is_gone(name) and not self._is_handed(sink):
            new = [f'"{sink}"' for sink in self._graph.sinks if sink not in self._sinks()]
            fate = f"gives it to {' or '.join(new)}, if it comes there, or " if new else ""
            return (
                f"{name}, which is not in the pipeline, owes it; the next run {fate}makes a dead letter of it"
            )
        if name not in self._graph.nodes and "." not in name:
            where = "to another pipeline or to a buffer; signoff status says what waits for what is gone"
            return f"{name}, which is not in the pipeline, has handed it on {_since(sink)} {where}"
        if self._is_handed(sink) and (step := self._keeps_state(name)):
            return f"{step} has it {_since(sink)}, and has not given out all results it is part of"
        node = self._graph.nodes.get(name)
        if self._is_handed(sink) and node is not None and node.config.type == "pipeline":
            where = "to another pipeline, whose answer it waits for; signoff status says if that was over a"
            return f"{name} has handed it on {_since(sink)} {where} link that the sink no longer has"
        if self._is_handed(sink) and node is not None and node.config.type == "job":
            return f"{name} waits for a run that covers it {_since(sink)}"
        return f"{name} {'has it in its buffer' if self._is_handed(sink) else 'owes it'} {_since(sink)}"

    def _keeps_state(self, name: str) -> str:
        """The window or fold that a sink of the engine's own hands events to, as people call it; '' if it is
        none."""
        step, dot, _ = name.partition(".")
        node = self._graph.nodes.get(step)
        kind = node.config.type if node is not None and dot else ""
        return f'{kind} "{step}"' if kind in ("window", "burst", "fold") else ""

    def _is_gone(self, name: str) -> bool:
        """Whether a sink is not in the pipeline any more."""
        return name.partition(".")[0] not in self._graph.nodes

    def _owes(self, sink: SinkState) -> bool:
        if isinstance(sink, OwesAll) and sink.came is not None:
            return self._event.sequence in sink.came or self._nobody_else(sink)
        if sink.wants_all or self._is_handed(sink):
            return True
        return any(self._concerns(row.sequence, row.child) for row in sink.wanted_rows)

    def _nobody_else(self, sink: SinkState) -> bool:
        """Whether no sink is known to have undelivered rows of an event: those wait for a step."""
        assert self._batch is not None
        others = [other for other in self._batch.debtors.values() if other is not sink and not other.done]
        sequence = self._event.sequence
        return not any(
            self._is_handed(other)
            or (other.arrived is not None and sequence in other.arrived)
            or any(row.sequence == sequence for row in other.wanted_rows)
            for other in others
        )

    def _is_handed(self, sink: SinkState) -> bool:
        return sink.handed_on is not None and self._event.sequence in sink.handed_on

    def _concerns(self, sequence: int, child: str) -> bool:
        """Rows of the event asked for, and of those made from it."""
        asked = self._event
        if sequence != asked.sequence:
            return False
        return not asked.child or child == asked.child or child.startswith(asked.child + "/")

    def _lines(self) -> Iterable[Line]:
        for row in self._rows:
            if row.stage and self._concerns(row.row.sequence, row.row.child):
                yield self._line_of_row(row)
        if self._batch is None:
            return
        named = {row.stage for row in self._rows}
        # Who owed an event when it expired stands in the reason; since then nobody does.
        expired = any(row.outcome == Outcome.EXPIRED for row in self._rows)
        negative = any(row.outcome in (Outcome.EXPIRED, Outcome.REFUSED) for row in self._rows)
        for who, state in self._debtors():
            owes = not state.done and self._owes(state)
            if owes and expired:
                continue
            if isinstance(who, Wait):
                if owes:
                    why = self._followed.get(who.step) or _tried(state)
                    yield Line(who.step, str(self._event), "waits", f"for {who.sink}: {why}")
            elif self._is_handed(state):
                kept = self._keeps_state(who)
                text = f"in {kept} {_since(state)}" if kept else _since(state)
                yield Line(who, str(self._event), "buffered", text)
            elif owes:
                yield Line(who, str(self._event), "owed", _since(state))
            elif who not in named:
                yield Line(who, str(self._event), "done", self._done(who, negative))

    def _done(self, name: str, negative: bool) -> str:
        """What can be said of a sink that needs nothing more of the batch, and has named no row of the event.

        What it took of an event that had expired, or had been refused at once, is not recorded.
        """
        gone = "is not in the pipeline any more; " if self._is_gone(name) else ""
        if self._was_removed(name):
            return (gone or "had been removed from the pipeline; ") + self._left_to_others(name)
        if negative:
            return f"{gone}finished this batch; whether it wrote rows of this event is not recorded"
        or_buffer = ", or its buffer did" if self._has_buffer(name) else ""
        if self._took_alone(name):
            return f"{gone}took its rows{or_buffer}"
        if not gone and self._got_nothing(name):
            return "no row of this event reached it"
        return f"{gone}took all that reached it{or_buffer}; whether a row of this event did is not recorded"

    def _took_alone(self, name: str) -> bool:
        """Whether nobody else can have taken the rows for which the event counts as delivered."""
        assert self._batch is not None
        others = [sink for other, sink in self._sinks().items() if other != name]
        alone = all(sink.wants_all and sink.handed_on is None for sink in others)
        return alone and not self._rows and self._event.sequence in self._batch.delivered

    def _got_nothing(self, name: str) -> bool:
        """Whether it is known: the event would count as delivered, but for letters that were replayed, and
        sinks whose rows are decided elsewhere."""
        assert self._batch is not None
        node = self._graph.nodes.get(name)
        decides = node is not None and node.config.type not in ("pipeline", "job")
        known = decides and not self._rows and not self._has_buffer(name)
        return known and self._event.sequence not in self._batch.delivered

    def _left_to_others(self, name: str) -> str:
        """What became of rows that a sink owed when it was removed. Those of its own became letters, which
        are named, unless a sink that was new then got rows of the event as well."""
        new = [sink for sink in self._sinks() if self._is_later(sink) and not self._was_removed(sink)]
        owing = {sink: state for sink, state in self._unsettled() if sink in new and sink != name}
        if len(new) == len(owing) == 1:
            ((successor, state),) = owing.items()
            return f'"{successor}" {"has handed on" if self._is_handed(state) else "owes"} its rows now'
        if owing:
            names = ", ".join(f'"{sink}"' for sink in owing)
            return f"rows of the event, and its own may be among them, are now to be delivered by {names}"
        if self._rows:
            return "rows that had reached it went to the sink that replaced it"
        return "whatever had reached it was delivered by the sink that replaced it"

    def _sinks(self) -> Mapping[str, SinkState]:
        return {} if self._batch is None else self._batch.sinks

    def _unsettled(self) -> Iterable[tuple[str, SinkState]]:
        """Sinks that may still be given rows of the event, by themselves or when a step has made them."""
        assert self._batch is not None
        if self._event.sequence in self._batch.owed:
            for who, state in self._debtors():
                if not state.done and self._owes(state):
                    yield sink_of(who), state

    def _was_removed(self, name: str) -> bool:
        """Whether a run has closed what a sink owed of the batch because it was not there."""
        assert self._batch is not None
        mine = (state for who, state in self._batch.debtors.items() if sink_of(who) == name)
        return any(state.done and state.error == REMOVED for state in mine)

    def _is_later(self, name: str) -> bool:
        """Whether a sink may have come into the pipeline after the batch was begun: it publishes under a
        number of its own, as does one that is asked for single rows."""
        return self._batch is not None and name in self._batch.published_as

    def _has_buffer(self, name: str) -> bool:
        """Whether a sink has, or had, a buffer: its being done may mean that the rows are, or were, there."""
        node = self._graph.nodes.get(name)
        settings = getattr(node.config, "buffer", None) if node is not None else None
        names = {name, getattr(settings, "name", None) or name}
        return any((self._graph.state / "links" / f"{each}{BUFFER}").exists() for each in names)

    def _line_of_row(self, row: RowRecord) -> Line:
        event_id = str(EventId(self._event.source, row.row.sequence, row.row.child))
        after = f" ({self._closed(row, event_id)})" if row.resolved else ""
        return Line(row.stage, event_id, row.outcome, row.reason + after)

    def _closed(self, row: RowRecord, event_id: str) -> str:
        """What became of a letter; its own record says more, as long as there is one."""
        key = (row.letter or event_id, row.stage)
        letter = next((x for x in (*self._letters, *self._further) if x.key == key), None)
        if letter is not None and letter.status == "replayed" and letter.result:
            return f"letter replayed: {letter.result}" if not letter.resubmitted else letter.result
        if letter is not None and letter.status == "dropped":
            return "letter dropped by hand"
        return _CLOSED.get(row.resolved, f"letter closed: {row.resolved}")

    def _reason(self, outcome: Outcome) -> str:
        return next(row.reason for row in self._rows if row.outcome == outcome)

    def _content_of_letter(self) -> dict[str, Any]:
        """The log may be trimmed; a letter has the payload as well."""
        if not self._letters:
            return {}
        letter = self._letters[0]
        at = None if letter.received_at is None else datetime.fromtimestamp(letter.received_at, UTC)
        return {"payload": letter.payload, "headers": letter.headers, "received_at": at}


_SETTLED = {
    "delivered": "every sink that its acknowledgement waits for has signed",
    "dropped": "nothing of it was left to deliver",
    "dead_lettered": "what could not be delivered is stored as a dead letter",
    "settled": "settled; older than the details the ledger keeps, which has only the counts of its batch",
}


_CLOSED = {
    "delivered": "letter replayed: delivered",
    "moved": "letter replayed, and failed at a later stage, or resubmitted",
}


def _is_given_up(row: RowRecord) -> bool:
    """A row that will not be delivered: dropped by policy, or a letter that was closed without delivery."""
    return Outcome.DROPPED in (row.outcome, row.resolved)


def as_text(payload: bytes) -> tuple[str, str]:
    """A payload for people and JSON: as text, else as base64; and which of the two."""
    try:
        return payload.decode("utf-8"), "utf-8"
    except UnicodeDecodeError:
        return base64.b64encode(payload).decode("ascii"), "base64"


def _since(sink: SinkState) -> str:
    if sink.handed_on is not None and sink.since:
        return f"(since {datetime.fromtimestamp(sink.since, UTC):%Y-%m-%dT%H:%M:%SZ})"
    if not sink.attempts and not sink.error:
        return "(not tried yet)"
    return f"({_tried(sink)})"


def _waits_for(step: str, state: SinkState) -> str:
    return f"it waits for step {step} {_tried(state)}"


def _tried(sink: SinkState) -> str:
    since = f"since {datetime.fromtimestamp(sink.since, UTC):%Y-%m-%dT%H:%M:%SZ}, " if sink.since else ""
    if not sink.attempts and sink.error:
        return since + sink.error
    return f"{since}tried {sink.attempts} times{': ' + sink.error if sink.error else ''}"
