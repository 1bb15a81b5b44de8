"""NATS JetStream: messages of a stream, acknowledged when their events are settled.

What it keeps:

- A message is acknowledged only when the ledger holds its event as settled, at the address of its last
  delivery. While its event is in flight the server is asked for more time, and not longer.
- A message is known by its number in the stream and the time it was stored: `unit` and `position` of its
  event. One that is delivered again while its event is in the log is no second event; it gets the answer
  that its event has, now or when there is one.
- What was settled while its message was not with us is recognised when that comes: the log is kept for it
  until the server waits for no answer to it (`unanswered`).
- A message that was refused and goes back is a new event when it comes again, also after a restart: that it
  was refused is on disk before the server is told.
"""

from __future__ import annotations

import logging
import random
import time
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
from pyroaring import BitMap64

from signoff.durable import make_directory
from signoff.errors import LogError, SourceError
from signoff.sources.contract import EndOfSource, Resume, Settlement, Source, SourceContext
from signoff.sources.events import KEPT_BYTES, event_batch, piece, too_large
from signoff.sources.nats.config import NatsConfig
from signoff.sources.nats.link import Delivery, Link, LinkLost
from signoff.sources.nats.remembered import Identity, Remembered
from signoff.sources.refusal_notes import Refusals

logger = logging.getLogger(__name__)

NOTE_FILE = "refused"
FLOW_S = 0.02
"""While messages keep coming, one batch is collected for at most this long."""
FLOW_BYTES = 2 * 1024**2
SILENCE_S = 0.3
"""A run that takes what is there ends after this long without a message, if none waits."""
ONCE_UNREACHABLE_S = 10.0
FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 10.0
SAY_AGAIN_S = 60.0
ATTEMPTS = 5
"""How often the log is read again when it is trimmed while it is being read."""
EXTEND_SHARE = 1 / 3
"""Of `ack_wait`: after so much of it the server is asked for more time."""


class NatsSource(Source):
    def __init__(self, config: NatsConfig, base: Path) -> None:
        self._config, self._base = config, base
        self._link: Link | None = None
        self._known = Remembered()
        self._owed: dict[int, Delivery] = {}
        """Deliveries of this link without an answer, by the number of their event."""
        self._handed_out: deque[int] = deque()
        """How many events each batch has that is not in the log yet."""
        self._acknowledged = BitMap64()
        self._refused: dict[int, bool] = {}
        """Refused (true: transient) while their message was not with us: answered when it is."""
        self._over = False
        self._trouble = ""
        self._failures = 0
        self._given_back = set[Identity]()
        """Messages that were answered with `nak`: a run that takes what is there does not wait for them."""
        self._refused_before = set[Identity]()
        """Messages whose event in the log was refused before this run: they may not have come again."""
        self._retry_at = self._extended_at = self._say_again_at = 0.0

    # From the stream to the log

    def open(self, context: SourceContext, resume: Resume) -> None:
        self._name, self._once, self._log = context.name, context.once, context.log
        self._next = resume.next_sequence
        make_directory(context.directory)
        oldest = self._log.first() if self._log else self._next
        self._notes = Refusals(context.directory / NOTE_FILE, oldest)
        self._known = self._read_log()
        self._acknowledged = self._known.sequences & BitMap64(range(resume.settled_upto))
        self._last_seen = self._down_since = time.monotonic()

    def receive(self, max_events: int, timeout_s: float) -> pa.RecordBatch | None:
        try:
            link = self._linked(timeout_s)
            if link is None:
                return None
            self._extend()
            deliveries = _collect(link, max_events, timeout_s)
            if not deliveries:
                self._end_if_empty(link)
                return None
            self._last_seen = time.monotonic()
            return self._events(deliveries)
        except LinkLost as lost:
            self._lost(str(lost))
            return None

    def logged(self, first_sequence: int, count: int) -> None:
        expected = self._next - sum(self._handed_out)
        if (expected, self._handed_out.popleft()) != (first_sequence, count):
            raise SourceError(
                f"{count} events were logged as {first_sequence} and following, expected was {expected}; "
                "the source would acknowledge the wrong messages"
            )

    # From the ledger to the stream

    def settle(self, settlement: Settlement) -> None:
        self._acknowledged |= settlement.acknowledged & self._known.sequences
        refused = {n: n in settlement.transient for n in settlement.refused} | dict.fromkeys(
            settlement.expired, True
        )
        # No others can be recognised: they were answered, or are not in the log any more.
        self._refused |= {n: how for n, how in refused.items() if n in self._known.sequences}
        self._answer()

    def tend(self) -> None:
        if self._link is None:
            return
        try:
            self._extend()
            self._link.pump()
        except LinkLost as lost:
            self._lost(str(lost))

    def trouble(self) -> str:
        return self._trouble

    def limit(self) -> str:
        if self._link is None or len(self._owed) < self._link.most_unacknowledged:
            return ""
        return f"{len(self._owed)} messages are unacknowledged, more are not delivered (max_ack_pending)"

    def unanswered(self) -> int | None:
        """Without a connection, any that was received; with one, what is not with us and may come again."""
        if self._link is None:
            return self._log.first() if self._log else None
        self._known.answered_upto(self._link.answered_upto)
        return self._known.awaited()

    def stop(self) -> None:
        self._over = True
        try:
            if self._link is not None:
                self._link.stop()
        except LinkLost as lost:
            self._lost(str(lost))

    def drained(self) -> bool:
        return not self._handed_out and not self._owed

    def close(self) -> None:
        if self._link is not None:
            try:
                self._link.stop()
                # What is in the log will be done here; what is not may be done elsewhere, and at once.
                logged = self._next - sum(self._handed_out)
                self._link.answer([(each.reply, b"-NAK") for n, each in self._owed.items() if n >= logged])
            except LinkLost as lost:
                logger.debug("messages go back when their time is over: %s", lost)
            self._link.close()
            self._link = None
        self._notes.close()

    # The connection

    def _linked(self, timeout_s: float) -> Link | None:
        """The link; None while there is none and it is not yet time to try again."""
        if self._link is not None:
            return self._link
        wait = self._retry_at - time.monotonic()
        if wait > 0:
            time.sleep(min(wait, timeout_s))
            return None
        self._link = Link(self._config, self._base, self._name, self._start)
        self._known.expect(self._link.stream_made_ns, self._link.answered_upto)
        if self._trouble:
            logger.warning("connected to %s again", self._config.url)
        self._trouble, self._failures = "", 0
        self._extended_at = 0.0
        self._last_seen = time.monotonic()
        return self._link

    def _start(self, made_ns: int) -> int | None:
        """Of a stream that was made then: the number of the first message that is not acknowledged, or of the
        one after the last; None if none was received."""
        received = self._known.of_stream(made_ns)
        owed = [number for number, sequence in received if sequence not in self._acknowledged]
        owed += [number for number, stored in self._given_back | self._refused_before if stored >= made_ns]
        return min(owed) if owed else max((number for number, _ in received), default=-1) + 1 or None

    def _lost(self, reason: str) -> None:
        """Discard the connection; what is unanswered is delivered again when its time is over."""
        now = time.monotonic()
        if self._link is not None:
            self._link.close()
            self._link, self._down_since = None, now
        self._owed.clear()
        wait = min(FIRST_WAIT_S * 2.0**self._failures, LONGEST_WAIT_S) * random.uniform(0.5, 1.0)
        self._failures = min(self._failures + 1, 30)
        self._retry_at = now + wait
        trouble = f"no connection to {self._config.url}: {reason}"
        if not self._trouble or now >= self._say_again_at:
            logger.warning("%s", trouble)
            self._say_again_at = now + SAY_AGAIN_S
        self._trouble = trouble
        if self._once and not self._over and now - self._down_since > ONCE_UNREACHABLE_S:
            raise SourceError(f"{trouble}; nothing is lost, what was not settled stays in the stream")

    def _end_if_empty(self, link: Link) -> None:
        if not self._once or time.monotonic() - self._last_seen < SILENCE_S:
            return
        self._last_seen = time.monotonic()  # ask again only after another silence
        undelivered, unanswered = link.waiting()
        if not undelivered and unanswered <= len(self._owed) + len(self._given_back) and not link.buffer:
            self._over = True
            link.stop()
            raise EndOfSource

    def _extend(self) -> None:
        """Ask for more time for everything that is with us."""
        now = time.monotonic()
        if self._link is None or now < self._extended_at + self._link.ack_wait_s * EXTEND_SHARE:
            return
        self._extended_at = now
        held = [each.reply for each in (*self._owed.values(), *self._link.buffer)]
        if held:
            self._link.answer((reply, b"+WPI") for reply in held)

    # Old and new

    def _events(self, deliveries: list[Delivery]) -> pa.RecordBatch | None:
        """Hand out what is new; what is in the log already gets the answer that its event has."""
        fresh, known = list[Delivery](), False
        for delivery in deliveries:
            identity = (delivery.stream_sequence, delivery.stored_ns)
            self._given_back.discard(identity)
            self._refused_before.discard(identity)
            sequence = self._known.came(identity)
            if sequence is None:
                sequence = self._next + len(fresh)
                self._known.add(identity, sequence)
                fresh.append(delivery)
            else:
                known = True
            self._owed[sequence] = delivery
        events = None
        if fresh:
            self._next += len(fresh)
            self._handed_out.append(len(fresh))
            events = events_of(fresh, self._config.max_event_bytes)
            self._forget()
        if known:
            try:
                self._answer()
            except OSError as error:  # no room for a note; what is handed out is in our hands alone
                self._lost(str(error))
        return events

    def _forget(self) -> None:
        """Messages beyond what is remembered: not those that are with us, or may come."""
        gone = self._known.forget(self._config.remember, self._owed)
        self._acknowledged -= gone
        for sequence in gone & BitMap64(self._refused):
            del self._refused[sequence]

    def _read_log(self) -> Remembered:
        """What was received and may be delivered again."""
        for attempt in range(ATTEMPTS):
            known = Remembered()
            try:
                for identity, sequence in self._logged_messages():
                    known.add(identity, sequence)
            except LogError:  # settled events were removed from the log this moment
                if attempt == ATTEMPTS - 1:
                    raise
            else:
                break
        return known

    def _logged_messages(self) -> Iterable[tuple[Identity, int]]:
        if self._log is None:
            return
        end = self._log.head()
        start = max(self._log.first(), 0)
        for first, events in self._log.read(start, end, ("unit", "position")):
            places = zip(
                events.column("unit").to_pylist(), events.column("position").to_pylist(), strict=True
            )
            for sequence, (number, stored) in enumerate(places, first):
                if number is None:
                    continue
                if sequence in self._notes.sequences:
                    self._refused_before.add((number, stored))
                else:
                    self._refused_before.discard((number, stored))
                    yield (number, stored), sequence

    # Answers

    def _answer(self) -> None:
        """Tell the stream whatever is known of the messages that are with us."""
        if self._link is None:
            return
        try:
            taken = BitMap64(self._owed) & self._acknowledged
            if taken:
                self._link.answer([(self._owed[n].reply, b"+ACK") for n in taken])
            for n in taken:
                del self._owed[n]
            self._refuse(self._link, {n: self._refused[n] for n in self._refused.keys() & self._owed.keys()})
        except LinkLost as lost:
            self._lost(str(lost))

    def _refuse(self, link: Link, refused: dict[int, bool]) -> None:
        """Note these refusals, then tell the server. From then on their messages are new ones."""
        if not refused:
            return
        self._notes.note(refused, self._log.first() if self._log else 0)
        answers = list[tuple[str, bytes]]()
        for n, transient in refused.items():
            delivery, answer = self._owed.pop(n), self._refusal(transient)
            del self._refused[n]
            identity = self._known.drop(n)
            if answer != b"+TERM":
                self._given_back.add(identity)
            answers.append((delivery.reply, answer))
        link.answer(answers)

    def _refusal(self, transient: bool) -> bytes:
        answer = self._config.on_refuse.transient if transient else self._config.on_refuse.permanent
        if answer == "term":
            return b"+TERM"
        return b"-NAK " + orjson.dumps({"delay": int(self._config.nak_delay * 1e9)})


def _collect(link: Link, max_events: int, timeout_s: float) -> list[Delivery]:
    """What is delivered within the time, and more as long as it keeps coming."""
    link.pump(timeout_s)
    taken: list[Delivery] = []
    until, size = time.monotonic() + FLOW_S, 0
    while len(taken) < max_events and size < FLOW_BYTES:
        if not link.buffer:
            if not taken or time.monotonic() >= until:
                break
            link.pump(0.001)
            if not link.buffer:
                break
        taken.append(link.buffer.popleft())
        size += len(taken[-1].message.data)
    return taken


def events_of(deliveries: list[Delivery], limit: int) -> pa.RecordBatch:
    payloads, errors = [], dict[int, str]()
    for index, delivery in enumerate(deliveries):
        data = delivery.message.data
        if len(data) > limit:
            errors[index] = too_large(len(data), limit)
            data = data[:KEPT_BYTES]
        payloads.append(data)
    return event_batch(
        piece(payloads, [each.stored_ns for each in deliveries], errors),
        unit=np.array([each.stream_sequence for each in deliveries], dtype=np.int64),
        headers=[_headers(each) for each in deliveries],
        message_ids=[_message_id(each) for each in deliveries],
    )


def _headers(delivery: Delivery) -> Mapping[str, str]:
    own = {
        name: text for name, text in (delivery.message.headers or {}).items() if not name.startswith("nats.")
    }
    return {
        "nats.subject": delivery.message.subject,
        "nats.sequence": str(delivery.stream_sequence),
        "nats.delivered": str(delivery.delivered),
        **own,
    }


def _message_id(delivery: Delivery) -> str | None:
    return (delivery.message.headers or {}).get("Nats-Msg-Id")
