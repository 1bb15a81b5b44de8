"""Redis streams: entries of a consumer group, acknowledged when their events are settled.

What it keeps:

- An entry is acknowledged only when the ledger holds its event as settled. While its event is in flight it is
  claimed again and again by ourselves, so that it is not idle and nobody takes it over.
- An entry is known by its id and its payload: `unit` and `position` of its event, and what the log holds. One
  that comes again while its event is in the log is no second event; it gets the answer that its event has.
- An entry that was refused and stays pending is a new event when it is taken over, also after a restart: that
  it was refused is on disk before anything is said to the server.
"""

from __future__ import annotations

import logging
import random
import secrets
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
from pyroaring import BitMap64

from signoff.durable import make_directory, write_whole
from signoff.errors import LogError, SourceError
from signoff.sources.contract import EndOfSource, Resume, Settlement, Source, SourceContext
from signoff.sources.redis.config import RedisConfig, RefuseAction
from signoff.sources.redis.entries import Entry, Key, Read, events_of, id_of, key, numbers, read
from signoff.sources.redis.link import Link, LinkLost
from signoff.sources.refusal_notes import Refusals

logger = logging.getLogger(__name__)

NOTE_FILE, NAME_FILE = "refused", "consumer"
FLOW_BYTES = 4 * 1024**2
"""About so much is read at once."""
FIRST_COUNT, MOST_COUNT = 100, 5_000
"""Entries that are asked for at once: before it is known how large they are, and at most."""
KEEP_SHARE = 1 / 3
"""Of `claim_idle`: after so much of it our entries are kept from being idle."""
LOOK_SHARE = 1 / 4
"""Of `claim_idle`: so often what is idle is looked for."""
SILENCE_S = 0.3
"""A run that takes what is there ends after this long without an entry."""
ONCE_UNREACHABLE_S = 10.0
FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 10.0
SAY_AGAIN_S = 60.0
ATTEMPTS = 5
"""How often the log is read again when it is trimmed while it is being read."""
BEGINNING = b"0-0"


class RedisSource(Source):
    def __init__(self, config: RedisConfig, base: Path) -> None:
        self._config, self._base = config, base
        self._link: Link | None = None
        self._known: dict[Key, int] = {}
        """The newest events by their entries; those that were refused are not among them."""
        self._keys: dict[int, Key] = {}
        """The same the other way round, oldest first."""
        self._sequences = BitMap64()
        """Of all of them."""
        self._owed: dict[int, bytes] = {}
        """Events whose entry is pending and ours, with its id."""
        self._handed_out: deque[int] = deque()
        """How many events each batch has that is not in the log yet."""
        self._acknowledged = BitMap64()
        self._refused: dict[int, tuple[RefuseAction, str]] = {}
        """Refused, and not answered yet."""
        self._given_back = set[bytes]()
        """Entries that were refused and are pending until somebody takes them over."""
        self._history: bytes | None = BEGINNING
        """Up to where our own pending entries were read on this link; None: all."""
        self._cursor = BEGINNING
        """Where the search for what is idle goes on."""
        self._count = FIRST_COUNT
        self._over = False
        self._trouble = ""
        self._failures = 0
        self._retry_at = self._kept_at = self._look_at = self._say_again_at = 0.0

    # From the stream to the log

    def open(self, context: SourceContext, resume: Resume) -> None:
        self._name, self._once, self._log = context.name, context.once, context.log
        self._next = resume.next_sequence
        make_directory(context.directory)
        self._consumer = self._config.consumer or _own_name(context.directory / NAME_FILE)
        self._notes = Refusals(context.directory / NOTE_FILE, self._log.first() if self._log else self._next)
        self._read_log()
        self._acknowledged = self._sequences & BitMap64(range(resume.settled_upto))
        self._last = (resume.unit, resume.position) if self._log is None and resume.unit is not None else None
        """Without the log nothing can be recognised; what is not behind this was received before."""
        self._last_seen = self._down_since = time.monotonic()

    def receive(self, max_events: int, timeout_s: float) -> pa.RecordBatch | None:
        try:
            link = self._linked(timeout_s)
            if link is None:
                return None
            self._keep(link)
            room = min(max_events, self._count, self._config.max_pending - len(self._owed))
            if room <= 0:
                time.sleep(timeout_s)
                return None
            entries = self._next_entries(link, room, timeout_s)
            if not entries:
                self._end_if_empty()
                return None
            self._last_seen = time.monotonic()
            return self._events(link, entries)
        except LinkLost as lost:
            self._lost(str(lost))
            return None

    def logged(self, first_sequence: int, count: int) -> None:
        expected = self._next - sum(self._handed_out)
        if (expected, self._handed_out.popleft()) != (first_sequence, count):
            raise SourceError(
                f"{count} events were logged as {first_sequence} and following, expected was {expected}; "
                "the source would acknowledge the wrong entries"
            )

    # From the ledger to the stream

    def settle(self, settlement: Settlement) -> None:
        self._acknowledged |= settlement.acknowledged & self._sequences
        answers, transient = self._config.on_refuse, settlement.transient
        for n, reason in {**settlement.refused, **settlement.expired}.items():
            if n in self._sequences:  # no others can be recognised: they were answered, or are not in the log
                passing = n in transient or n in settlement.expired
                self._refused[n] = (answers.transient if passing else answers.permanent, reason)
        if self._link is not None:
            try:
                self._answer(self._link)
            except LinkLost as lost:
                self._lost(str(lost))

    def tend(self) -> None:
        if self._link is not None:
            try:
                self._keep(self._link)
            except LinkLost as lost:
                self._lost(str(lost))

    def trouble(self) -> str:
        return self._trouble

    def limit(self) -> str:
        if self._link is None or len(self._owed) < self._config.max_pending:
            return ""
        return f"{len(self._owed)} entries are unacknowledged, more are not read (max_pending)"

    def unanswered(self) -> int | None:
        """Until all that is pending and ours was read on this link, any event may be answered still."""
        complete = self._link is not None and self._history is None
        return None if complete or self._log is None else self._log.first()

    def stop(self) -> None:
        self._over = True

    def drained(self) -> bool:
        return not self._handed_out and (self._link is None or not self._owed)

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
        link = Link(self._config, self._base, self._name, self._consumer, self._start)
        self._link, self._history, self._cursor = link, BEGINNING, BEGINNING
        if self._trouble:
            logger.warning("connected to %s again", self._config.url)
        self._trouble, self._failures = "", 0
        self._kept_at = 0.0
        self._last_seen = time.monotonic()
        self._answer(link)
        return link

    def _start(self, last_given: bytes) -> bytes | None:
        """Where a group begins that was deleted: behind what was received, or before what is pending."""
        received = [(milliseconds, place) for milliseconds, place, _ in self._known]
        if not received or max(received) > numbers(last_given):  # the stream was deleted, too
            return b"0" if received else None
        open_ = [self._keys[n][:2] for n in self._sequences - self._acknowledged]
        open_ += [numbers(each) for each in self._given_back]
        if not open_:
            return id_of(*max(received))
        milliseconds, place = min(open_)
        return id_of(milliseconds, place - 1) if place else id_of(milliseconds - 1, -1)

    def _lost(self, reason: str) -> None:
        """Discard the connection. What is pending stays ours until somebody takes it over."""
        now = time.monotonic()
        if self._link is not None:
            self._link.close()
            self._link, self._down_since = None, now
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

    def _end_if_empty(self) -> None:
        if self._once and self._history is None and time.monotonic() - self._last_seen > SILENCE_S:
            self._over = True
            raise EndOfSource

    def _keep(self, link: Link) -> None:
        """Keep what is with us from being idle."""
        now = time.monotonic()
        if now >= self._kept_at + self._config.claim_idle * KEEP_SHARE:
            self._kept_at = now
            link.keep(list(self._owed.values()))

    # Old and new

    def _next_entries(self, link: Link, room: int, timeout_s: float) -> list[Entry]:
        """First what was given to us before, then, now and again, what is idle, and else what is new."""
        if self._history is not None:
            entries = link.history(self._history, room)
            self._history = entries[-1].id if entries else None
            return [each for each in entries if each.id not in self._given_back]
        now = time.monotonic()
        if now >= self._look_at:
            self._cursor, idle = link.take_over(self._cursor, room)
            if self._cursor == BEGINNING:
                self._look_at = now + self._config.claim_idle * LOOK_SHARE
            if idle:
                return idle
        return link.new(room, timeout_s)

    def _events(self, link: Link, entries: Sequence[Entry]) -> pa.RecordBatch | None:
        """Hand out what is new; what is in the log already gets the answer that its event has."""
        config, fresh, known, size = self._config, list[Read](), False, 0
        for each in entries:
            self._given_back.discard(each.id)
            one = read(each, config.stream, config.field, config.id_field, config.max_event_bytes)
            sequence = self._known.get(one.key)
            known |= sequence is not None
            if sequence is None and each.fields is not None and self._is_behind(one.key):
                sequence = self._next + len(fresh)
                self._remember(one.key, sequence)
                fresh.append(one)
                size += len(one.payload)
            if sequence is not None:
                self._owed[sequence] = each.id
        if fresh:
            self._next += len(fresh)
            self._handed_out.append(len(fresh))
            self._count = max(1, min(MOST_COUNT, 2 * self._count, FLOW_BYTES * len(fresh) // max(size, 1)))
            self._forget()
        try:
            link.acknowledge([each.id for each in entries if each.fields is None])  # deleted by somebody
            if known:
                self._answer(link)
        except (LinkLost, OSError) as error:  # no room for a note, too; what is new is in our hands alone
            self._lost(str(error))
        return events_of(fresh) if fresh else None

    def _is_behind(self, key: Key) -> bool:
        return self._last is None or key[:2] > self._last

    def _remember(self, key: Key, sequence: int) -> None:
        self._known[key] = sequence
        self._keys[sequence] = key
        self._sequences.add(sequence)

    def _drop(self, sequence: int) -> None:
        key = self._keys.pop(sequence)
        if self._known.get(key) == sequence:
            del self._known[key]
        self._sequences.discard(sequence)
        self._acknowledged.discard(sequence)
        self._refused.pop(sequence, None)

    def _forget(self) -> None:
        """The oldest entries beyond what is remembered, but none that is with us."""
        many = len(self._keys) - self._config.remember - len(self._owed)
        if many > 0:
            gone = [n for n in list(self._keys)[: many + len(self._owed)] if n not in self._owed]
            for sequence in gone[:many]:
                self._drop(sequence)

    def _read_log(self) -> None:
        """What was received and may come again."""
        for attempt in range(ATTEMPTS):
            self._known, self._keys, self._sequences = {}, {}, BitMap64()
            try:
                for sequence, (milliseconds, place, payload) in self._logged_entries():
                    if sequence in self._notes.sequences:
                        self._given_back.add(id_of(milliseconds, place))
                    else:
                        self._given_back.discard(id_of(milliseconds, place))
                        self._remember(key(milliseconds, place, payload), sequence)
            except LogError:  # settled events were removed from the log this moment
                if attempt == ATTEMPTS - 1:
                    raise
            else:
                break

    def _logged_entries(self) -> Iterable[tuple[int, tuple[int, int, bytes]]]:
        if self._log is None:
            return
        for first, events in self._log.read(
            max(self._log.first(), 0), self._log.head(), ("unit", "position", "payload")
        ):
            columns = (events.column(name).to_pylist() for name in ("unit", "position", "payload"))
            for sequence, entry in enumerate(zip(*columns, strict=True), first):
                if entry[0] is not None:
                    yield sequence, entry

    # Answers

    def _answer(self, link: Link) -> None:
        """Tell the server whatever is known of the entries that are with us."""
        taken = BitMap64(self._owed) & self._acknowledged
        if taken:
            link.acknowledge([self._owed[n] for n in taken])
            for n in taken:
                del self._owed[n]
        refused = {n: self._refused[n] for n in self._refused.keys() & self._owed.keys()}
        if refused:
            self._refuse(link, refused)

    def _refuse(self, link: Link, refused: Mapping[int, tuple[RefuseAction, str]]) -> None:
        """Note these refusals, then act on them. From then on their entries are new ones."""
        self._notes.note(refused, self._log.first() if self._log else 0)
        ids = {n: self._owed.pop(n) for n in refused}
        self._given_back |= set(ids.values())  # also those that cannot be answered now
        for n in refused:
            self._drop(n)
        for n, (action, reason) in refused.items():
            if action == "dead_stream":
                link.bury(ids[n], reason)
        link.acknowledge([ids[n] for n, (action, _) in refused.items() if action == "acknowledge"])
        self._given_back -= {ids[n] for n, (action, _) in refused.items() if action != "pending"}


def _own_name(path: Path) -> str:
    """Made once: pending entries belong to a name."""
    if not path.exists():
        write_whole(path, f"signoff-{secrets.token_hex(8)}".encode())
    return path.read_text()
