"""Telling a redelivered message from a new one.

A broker delivers again whatever was not acknowledged when a channel ends: the intake was killed, the
connection was cut, the broker died. Most of that is in the log already. `Orphans` are the events of
the log whose message may come again; a delivery from the same queue with the same message id and the same
body is that message. Whether the broker calls it redelivered does not matter: one that was killed forgets.

A message that was refused and went back to the queue must not be taken for the event it was: it is a
new event. `Refusals` notes, durably and before the broker is told, which events those are, and how
often each message went back.

Without a message id nothing can be recognised: such a message is a new event.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from signoff.sources.rabbitmq.events import PREFIX

Key = tuple[str, int, str]
"""Message id, hash of the body, and the queue where several are consumed."""
COLUMNS = ("message_id", "payload")
KEPT_REFUSALS = 100_000
"""Refusals whose count is kept although their events are no longer in the log."""


class Orphans:
    """Events of earlier channels, each to be found once by the message it was made of.

    Several events may have one key: the same message was published several times. Their messages are all
    alike, so one that comes is taken for an event that is still owed, oldest first, and for a settled one
    only when no other is left: that one's message may have been acknowledged, and then it does not come.
    """

    def __init__(self, *, by_queue: bool = False) -> None:
        self._by_queue = by_queue
        """Several queues are consumed: the same message in two of them is two messages."""
        self._sequences: dict[Key, int] = {}
        self._several: dict[Key, BitMap64] = {}
        """Where more than one event has a key: all of them."""
        self._unclaimed = BitMap64()
        self._claimed: list[tuple[Key, int]] = []
        """Found: no orphans on this channel, but what they were answered with may be lost with it."""

    def __bool__(self) -> bool:
        return bool(self._unclaimed)

    def __len__(self) -> int:
        return len(self._unclaimed)

    def __contains__(self, sequence: int) -> bool:
        return sequence in self._unclaimed

    def lowest(self) -> int | None:
        return self._unclaimed.min() if self._unclaimed else None

    def add(self, first: int, events: pa.RecordBatch, without: BitMap64) -> None:
        """Add events of the log (`columns` are enough) from sequence number `first` on."""
        ids = events.column("message_id")
        if ids.null_count == len(ids):
            return
        payloads = events.column("payload").to_pylist()
        messages = zip(ids.to_pylist(), payloads, queues_of(events, self._by_queue), strict=True)
        for sequence, (message_id, payload, queue) in enumerate(messages, first):
            if message_id is None or sequence in without:
                continue
            self._put((message_id, hash(payload), queue), sequence)

    def claim(
        self, message_id: str, payload: bytes, queue: str, settled: BitMap64, below: int = 0
    ) -> int | None:
        """The event this message became earlier; it is no orphan any more. All below `below` are settled."""
        key = (message_id, hash(payload), queue if self._by_queue else "")
        if (several := self._several.get(key)) is None:
            sequence = self._sequences.pop(key, None)
        else:
            owed = several - settled
            owed.remove_range(0, below)
            sequence = (owed or several).min()
            several.remove(sequence)
            if not several:
                del self._several[key]
        if sequence is not None:
            self._unclaimed.remove(sequence)
            self._claimed.append((key, sequence))
        return sequence

    def forget(self, settled: BitMap64, below: int) -> None:
        """Forget events that are settled: below `below` all are."""
        known = self.unclaimed()
        self._sequences, self._several, self._claimed = {}, {}, []
        self._unclaimed = BitMap64()
        for key, sequence in known:
            if sequence >= below and sequence not in settled:
                self._put(key, sequence)

    def adopt(self, others: Orphans, below: int, without: BitMap64) -> None:
        """Take over those of an earlier channel with numbers below `below`."""
        for key, sequence in [*others.unclaimed(), *others._claimed]:
            if sequence < below and sequence not in without:
                self._put(key, sequence)

    def unclaimed(self) -> list[tuple[Key, int]]:
        several = [(key, sequence) for key, each in self._several.items() for sequence in each]
        return [*self._sequences.items(), *several]

    def _put(self, key: Key, sequence: int) -> None:
        self._unclaimed.add(sequence)
        if key in self._several:
            self._several[key].add(sequence)
        elif key in self._sequences:
            self._several[key] = BitMap64([self._sequences.pop(key), sequence])
        else:
            self._sequences[key] = sequence


def columns(by_queue: bool) -> tuple[str, ...]:
    """What must be read of the log to recognise a message. The headers are most of a small event."""
    return (*COLUMNS, "headers") if by_queue else COLUMNS


def queues_of(events: pa.RecordBatch, by_queue: bool) -> list[str]:
    """The queue each event came from; '' where they all come from one."""
    if not by_queue:
        return [""] * events.num_rows
    found = pc.map_lookup(events.column("headers"), pa.scalar(PREFIX + "queue"), "first")
    names = found.fill_null("").dictionary_encode()
    known = names.dictionary.to_pylist()
    return [known[index] for index in names.indices.to_pylist()]


@dataclass(frozen=True, slots=True)
class EarlierRefusal:
    """One event that was refused, as it is noted."""

    sequence: int
    message: str
    """Digest of message id and body, and of the queue where there are several; '' when the event is no longer
    in the log."""
    requeued: int
    """How often the message went back to its queue, this time included."""


class Refusals:
    """The note, one line of JSON for each refusal: on disk when `note` returns."""

    def __init__(self, path: Path, oldest: int) -> None:
        self._path = path
        self._requeued: dict[str, int] = {}
        self.sequences = BitMap64()
        """Events that were refused: their messages are no orphans."""
        kept = self._read(oldest)
        _replace(path, b"".join(map(_line, kept)))
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND)
        self._size = os.fstat(self._file).st_size
        for refusal in kept:
            self._take(refusal)

    def requeued(self, message: str) -> int:
        """How often this message went back to its queue."""
        return self._requeued.get(message, 0) if message else 0

    def note(self, refusals: Iterable[EarlierRefusal]) -> None:
        """Raises OSError, and notes nothing, when there is no room."""
        refusals = list(refusals)
        try:
            content = memoryview(b"".join(map(_line, refusals)))
            while content:
                content = content[os.write(self._file, content) :]
            os.fdatasync(self._file)
        except OSError:
            os.ftruncate(self._file, self._size)
            raise
        self._size = os.fstat(self._file).st_size
        for refusal in refusals:
            self._take(refusal)

    def close(self) -> None:
        os.close(self._file)

    def _take(self, refusal: EarlierRefusal) -> None:
        self.sequences.add(refusal.sequence)
        if refusal.message:
            self._requeued.pop(refusal.message, None)
            self._requeued[refusal.message] = refusal.requeued
            if len(self._requeued) > KEPT_REFUSALS:
                del self._requeued[next(iter(self._requeued))]

    def _read(self, oldest: int) -> list[EarlierRefusal]:
        found: list[EarlierRefusal] = []
        lines = self._path.read_bytes().splitlines() if self._path.exists() else []
        for line in lines:
            try:
                found.append(EarlierRefusal(**orjson.loads(line)))
            except orjson.JSONDecodeError:  # torn by a crash: the broker was not told either
                break
        old = [refusal for refusal in found if refusal.sequence < oldest]
        return old[-KEPT_REFUSALS:] + [refusal for refusal in found if refusal.sequence >= oldest]


def digest(message_id: str | None, payload: bytes, queue: str = "") -> str:
    """A short name for a message, the same whenever it comes."""
    name = f"{message_id or ''}\0{queue}" if queue else message_id or ""
    salt = blake2b(name.encode(), digest_size=16).digest()
    return blake2b(payload, digest_size=12, salt=salt).hexdigest()


def digests(
    first: int, events: pa.RecordBatch, wanted: Sequence[int], *, by_queue: bool = False
) -> dict[int, str]:
    """The digests of those of the events, from `first` on, whose sequence numbers are wanted."""
    places = [sequence - first for sequence in wanted if first <= sequence < first + events.num_rows]
    events = events.take(pa.array(places, pa.int64()))
    messages = zip(
        events.column("message_id").to_pylist(),
        events.column("payload").to_pylist(),
        queues_of(events, by_queue),
        strict=True,
    )
    return {first + place: digest(*message) for place, message in zip(places, messages, strict=True)}


def _line(refusal: EarlierRefusal) -> bytes:
    fields = {"sequence": refusal.sequence, "message": refusal.message, "requeued": refusal.requeued}
    return orjson.dumps(fields) + b"\n"


def _replace(path: Path, content: bytes) -> None:
    """Write the file whole and durably, or not at all."""
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
