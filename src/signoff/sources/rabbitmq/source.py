"""RabbitMQ: messages of one or several queues, acknowledged when their events are settled.

What it keeps:

- A message is acknowledged only when the ledger holds its event as settled (with `acknowledge: logged`:
  when it is in the log), and by the tag it has on the channel that is open now.
- A message that comes again while its event is in the log is not a second event, if it has a message
  id: its new tag is bound to the old sequence number. See `rabbitmq_redelivery`.
- A message that was refused and put back is a new event, also after a restart.

An event's sequence number is known when it is handed out: the intake appends what it is given, all of
it and in order. So nothing needs to be remembered by message, only where a run of tags begins.
"""

from __future__ import annotations

import logging
import random
import time
from collections import deque
from collections.abc import Iterable, Sequence

import pyarrow as pa
from pyroaring import BitMap64

from signoff.durable import make_directory
from signoff.errors import LogError, SourceError
from signoff.sources.contract import EndOfSource, Resume, Settlement, Source, SourceContext
from signoff.sources.rabbitmq.config import RabbitmqConfig, RefuseAction
from signoff.sources.rabbitmq.connection import Link, LinkLost
from signoff.sources.rabbitmq.deliveries import Deliveries
from signoff.sources.rabbitmq.events import Message, events_of, kept
from signoff.sources.rabbitmq.redelivery import EarlierRefusal, Orphans, Refusals, columns, digests

logger = logging.getLogger(__name__)

NOTE_FILE = "refused.jsonl"
"""In the source's directory: what was refused, so that it is not mistaken for an old event."""
FLOW_S = 0.02
"""While messages keep coming, one batch is collected for at most this long."""
FLOW_BYTES = 2 * 1024**2
"""And for so many bytes of payload, for a log takes a batch whole or not at all."""
SILENCE_S = 0.3
"""A run that takes what is there ends after this long without a message, if the queues are empty."""
ONCE_UNREACHABLE_S = 10.0
ATTEMPTS = 5
"""How often the log is read again when it is trimmed while it is being read."""
FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 10.0
SAY_AGAIN_S = 60.0
"""How often the log repeats that there is no connection; the status always says it, and why."""
STEADY_S = 5.0
"""A link that lived this long was a good one: the next attempt comes soon."""


class RabbitmqSource(Source):
    """`position` is the event's own sequence number; `unit` is not used."""

    def __init__(self, config: RabbitmqConfig) -> None:
        self._config = config
        self._link: Link | None = None
        self._deliveries = Deliveries()
        """Of the link that is open now; made anew with each."""
        self._by_queue = len(config.queues) > 1
        self._orphans = Orphans(by_queue=self._by_queue)
        self._relinks = False
        """There was a link before."""
        self._until_forgetting = 0
        """Deliveries still to come before settled orphans are forgotten."""
        self._received: deque[tuple[int, pa.RecordBatch]] = deque()
        """Batches handed out that are not in the log yet, with the number of their first event."""
        self._settled, self._base = BitMap64(), 0
        """What the source was told is settled: all below `_base`, and these."""
        self._refused: dict[int, bool] = {}
        """Refused (true: transient) while their message was back at the broker: answered when it is
        redelivered."""
        self._over = False
        self._trouble = ""
        self._failures = 0
        self._retry_at = self._tend_at = self._say_again_at = 0.0

    # From the broker to the log

    def open(self, context: SourceContext, resume: Resume) -> None:
        self._name, self._once, self._log = context.name, context.once, context.log
        self._next = resume.next_sequence
        make_directory(context.directory)
        oldest = self._first()
        self._notes = Refusals(context.directory / NOTE_FILE, oldest)
        # Now, not with the first link: what the source is told from here on may be removed from the log.
        self._orphans = self._find_orphans()
        self._last_seen = self._down_since = time.monotonic()

    def receive(self, max_events: int, timeout_s: float) -> pa.RecordBatch | None:
        try:
            link = self._linked(timeout_s)
            if link is None:
                return None
            messages = _collect(link, max_events, timeout_s)
            if not messages:
                self._end_if_empty(link)
                return None
            self._last_seen = time.monotonic()
            return self._events(link, messages)
        except LinkLost as lost:
            self._lost(str(lost))
            return None

    def logged(self, first_sequence: int, count: int) -> None:
        first, events = self._received.popleft()
        if (first, events.num_rows) != (first_sequence, count):
            raise SourceError(
                f"events {first} to {first + events.num_rows - 1} were logged as {first_sequence} to "
                f"{first_sequence + count - 1}; the source would acknowledge the wrong messages"
            )

    # From the ledger to the broker

    def settle(self, settlement: Settlement) -> None:
        refused = {n: n in settlement.transient for n in settlement.refused} | dict.fromkeys(
            settlement.expired, True
        )
        self._settled |= settlement.acknowledged
        self._settled |= self._notes.sequences & BitMap64(refused)
        try:
            self._refuse({n: how for n, how in refused.items() if n not in self._notes.sequences})
            self._acknowledge(settlement.acknowledged)
        except LinkLost as lost:
            self._lost(str(lost))
        self._advance()

    def tend(self) -> None:
        now = time.monotonic()
        if self._link is None or now < self._tend_at:
            return
        # No oftener: what is delivered meanwhile lies in memory, half a MiB each time.
        self._tend_at = now + self._config.heartbeat / 4
        try:
            self._link.pump()
        except LinkLost as lost:
            self._lost(str(lost))

    def trouble(self) -> str:
        return self._trouble

    def limit(self) -> str:
        owed = self._deliveries.owed
        if self._link is None or owed < self._link.most_unacknowledged:
            return ""
        return f"{owed} messages are unacknowledged, more are not delivered (prefetch)"

    def unanswered(self) -> int | None:
        """Without a connection, any that was received; with one, an old one that has not come yet."""
        return self._first() if self._link is None else self._orphans.lowest()

    def stop(self) -> None:
        self._over = True
        try:
            if self._link is not None:
                self._link.stop()
        except LinkLost as lost:
            self._lost(str(lost))

    def drained(self) -> bool:
        return not self._received and not self._deliveries.owed

    def close(self) -> None:
        if self._link is not None:
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
        self._link = Link(self._config, self._name)  # nothing is delivered before it is pumped
        self._deliveries = Deliveries()
        if self._relinks:
            self._orphans = self._find_orphans()
        self._relinks = True
        self._until_forgetting = max(self._config.remembered_events, len(self._orphans))
        if self._trouble:
            logger.warning("connected to %s again", self._config.url)
        self._trouble = ""
        self._last_seen = self._linked_at = time.monotonic()
        return self._link

    def _lost(self, reason: str) -> None:
        """Discard the connection and all its tags; unanswered messages are redelivered on the next one."""
        now = time.monotonic()
        if self._link is not None:
            self._link.close()
            self._link, self._down_since = None, now
            if now - self._linked_at > STEADY_S:
                self._failures = 0
        self._deliveries = Deliveries()
        wait = min(FIRST_WAIT_S * 2.0**self._failures, LONGEST_WAIT_S) * random.uniform(0.5, 1.0)
        self._failures = min(self._failures + 1, 30)
        self._retry_at = now + wait
        trouble = f"no connection to {self._config.url}: {reason}"
        if not self._trouble or now >= self._say_again_at:
            logger.warning("%s", trouble)
            self._say_again_at = now + SAY_AGAIN_S
        self._trouble = trouble
        if self._once and not self._over and now - self._down_since > ONCE_UNREACHABLE_S:
            raise SourceError(f"{trouble}; nothing is lost, what was not settled stays in the queues")

    def _end_if_empty(self, link: Link) -> None:
        if not self._once or time.monotonic() - self._last_seen < SILENCE_S:
            return
        self._last_seen = time.monotonic()  # ask again only after another silence
        if link.waiting() == 0 and not link.buffer:
            self._over = True
            link.stop()
            raise EndOfSource

    # Old and new

    def _events(self, link: Link, messages: list[Message]) -> pa.RecordBatch | None:
        """Hand out what is new; what is in the log already only gets its new tag."""
        fresh, known = messages, list[int]()
        if self._orphans:
            fresh, known = self._recognise(link, messages)
            self._until_forgetting -= len(messages)
            if self._until_forgetting < 0:
                self._until_forgetting = self._config.remembered_events
                self._orphans.forget(self._settled, self._base)
        events = self._hand_out(link, fresh) if fresh else None
        # Only now: `multiple` acknowledges whatever is below, and must find the new ones outstanding.
        try:
            self._refuse({n: self._refused[n] for n in known if n in self._refused})
            self._acknowledge(BitMap64([n for n in known if n < self._base or n in self._settled]))
        except (LinkLost, OSError) as error:  # no room for the note, too; what was handed out is logged
            self._lost(str(error))
        return events

    def _hand_out(self, link: Link, fresh: list[Message]) -> pa.RecordBatch:
        first = self._next
        for tag, place, count in _runs(fresh):
            self._deliveries.hand_out(tag, first + place, count)
        self._next += len(fresh)
        events = events_of(fresh, link.queues, first, self._config.max_event_bytes)
        self._received.append((first, events))
        return events

    def _recognise(self, link: Link, messages: list[Message]) -> tuple[list[Message], list[int]]:
        """The messages that are new, and the numbers of the others, which get their new tags."""
        fresh: list[Message] = []
        known: list[int] = []
        limit, claim = self._config.max_event_bytes, self._orphans.claim
        for message in messages:
            method, properties, body = message
            identity = properties.message_id
            sequence = None
            if identity is not None:
                queue = link.queues[method.consumer_tag]
                sequence = claim(identity, kept(body, limit), queue, self._settled, self._base)
            if sequence is None:
                fresh.append(message)
            else:
                self._deliveries.bind(method.delivery_tag, sequence)
                known.append(sequence)
        return fresh, known

    def _find_orphans(self) -> Orphans:
        """Everything that was received and may be redelivered: from the log, on its way there, and what is
        known already and was removed from the log since."""
        for attempt in range(ATTEMPTS):
            orphans, oldest = Orphans(by_queue=self._by_queue), self._first()
            try:
                for first, events in [*self._logged_events(oldest), *self._received]:
                    orphans.add(first, events, self._notes.sequences)
            except LogError:  # settled events were removed from the log this moment
                if attempt == ATTEMPTS - 1:
                    raise
            else:
                break
        orphans.adopt(self._orphans, oldest, self._notes.sequences)
        return orphans

    def _logged_events(self, oldest: int) -> Iterable[tuple[int, pa.RecordBatch]]:
        """All there are: one that was settled long after those behind it may not be acknowledged yet."""
        wanted = columns(self._by_queue)
        return [] if self._log is None else self._log.read(oldest, self._log.head(), wanted)

    def _first(self) -> int:
        """The oldest event in the log."""
        return self._log.first() if self._log else self._next

    # Answers

    def _acknowledge(self, sequences: BitMap64) -> None:
        if self._link is None or not sequences:
            return
        acks = self._deliveries.acknowledge(sequences)
        if acks.upto is not None:
            self._link.acknowledge(acks.upto, multiple=True)
        for tag in acks.singly:
            self._link.acknowledge(tag)

    def _refuse(self, refused: dict[int, bool]) -> None:
        """Note these refusals, then tell the broker; those whose message is not with us wait for it."""
        if not refused:
            return
        present = self._deliveries.holding(refused)
        oldest = self._first()
        for sequence, transient in refused.items():
            if sequence not in present:
                if sequence >= oldest:
                    self._refused[sequence] = transient
                else:  # no longer in the log: its message cannot be recognised any more
                    self._settled.add(sequence)
        if not present:
            return
        messages = self._digests(present)
        answers: dict[int, RefuseAction] = {}
        noted: list[EarlierRefusal] = []
        for sequence in present:
            message = messages.get(sequence, "")
            before = self._notes.requeued(message)
            answer = getattr(self._config.on_refuse, "transient" if refused[sequence] else "permanent")
            if before >= self._config.max_redeliveries:
                answer = "reject"
            answers[sequence] = answer
            noted.append(EarlierRefusal(sequence, message, before + (answer == "requeue")))
        self._notes.note(noted)
        self._settled |= present
        for sequence in present:
            self._refused.pop(sequence, None)
        assert self._link is not None
        for sequence, tag in self._deliveries.take_back(present).items():
            self._link.refuse(tag, requeue=answers[sequence] == "requeue")

    def _digests(self, sequences: BitMap64) -> dict[int, str]:
        found: dict[int, str] = {}
        if self._log is None:
            return found
        wanted = list(sequences)
        start, end = max(wanted[0], self._log.first()), wanted[-1] + 1
        if start < end:
            for first, events in self._log.read(start, end, columns(self._by_queue)):
                found |= digests(first, events, wanted, by_queue=self._by_queue)
        return found

    def _advance(self) -> None:
        """Move `_base` over what is settled in a row, so that the set stays small."""
        if self._refused and self._log is not None:
            oldest = self._log.first()
            for sequence in [each for each in self._refused if each < oldest]:
                del self._refused[sequence]  # its message cannot be recognised any more
                self._settled.add(sequence)
        owed = BitMap64(range(self._base, self._next)) - self._settled
        self._base = owed.min() if owed else max(self._base, self._next)
        self._settled.remove_range(0, self._base)


def _collect(link: Link, max_events: int, timeout_s: float) -> list[Message]:
    """What is delivered within the time, and more as long as it keeps coming."""
    buffer = link.buffer
    if not buffer:
        link.pump(timeout_s)
    until, seen, most = time.monotonic() + FLOW_S, 0, link.bytes_received + FLOW_BYTES
    while seen < len(buffer) < max_events and time.monotonic() < until and link.bytes_received < most:
        seen = len(buffer)
        link.pump()
    count = _within(buffer, max_events)
    taken = buffer[:count]
    del buffer[:count]
    return taken


def _within(messages: Sequence[Message], max_events: int) -> int:
    """How many of the first messages are one batch: what lay in the socket may be more, and large."""
    size = 0
    for count, (_, _, body) in enumerate(messages[:max_events], 1):
        size += len(body)
        if size >= FLOW_BYTES:
            return count
    return min(len(messages), max_events)


def _runs(messages: Sequence[Message]) -> Iterable[tuple[int, int, int]]:
    """(tag, place, count) of each run of messages whose tags follow each other."""
    first, last = messages[0][0].delivery_tag, messages[-1][0].delivery_tag
    if last - first + 1 == len(messages):
        return [(first, 0, len(messages))]
    runs: list[tuple[int, int, int]] = []
    start = 0
    for place in range(1, len(messages) + 1):
        before = messages[place - 1][0].delivery_tag
        if place == len(messages) or messages[place][0].delivery_tag != before + 1:
            runs.append((messages[start][0].delivery_tag, start, place - start))
            start = place
    return runs
