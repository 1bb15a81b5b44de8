"""Telling a redelivered message from a new one.

A broker delivers again whatever was not acknowledged when a channel ends: the intake was killed, the
connection was cut, the broker died. Most of that is in the log already. `Orphans` are the events of
the log whose message may come again; a delivery with the same message id and the same body is that
message. Whether the broker calls it redelivered does not matter: one that was killed forgets.

A message that was refused and went back to the queue must not be taken for the event it was: it is a
new event. `Refusals` notes, durably and before the broker is told, which events those are, and how
often each message went back.

Without a message id nothing can be recognised: such a message is a new event.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import orjson
import pyarrow as pa
from pyroaring import BitMap64

COLUMNS = ("message_id", "payload")
KEPT_REFUSALS = 100_000
"""Refusals whose count is kept although their events are no longer in the log."""


class Orphans:
    """Events of earlier channels, each to be found once by the message it was made of."""

    def __init__(self) -> None:
        self._sequences: dict[tuple[str, int], int] = {}
        self._more: dict[tuple[str, int], deque[int]] = {}
        """Where one message was published several times: its further events."""
        self._claimed: list[tuple[tuple[str, int], int]] = []
        """Found: no orphans on this channel, but what they were answered with may be lost with it."""

    def __bool__(self) -> bool:
        return bool(self._sequences)

    def __len__(self) -> int:
        return len(self._sequences) + sum(map(len, self._more.values()))

    def add(self, first: int, events: pa.RecordBatch, without: BitMap64) -> None:
        """Add events of the log (COLUMNS are enough) from sequence number `first` on."""
        ids = events.column("message_id")
        if ids.null_count == len(ids):
            return
        pairs = zip(ids.to_pylist(), events.column("payload").to_pylist(), strict=True)
        for sequence, (message_id, payload) in enumerate(pairs, first):
            if message_id is None or sequence in without:
                continue
            self._put((message_id, hash(payload)), sequence)

    def claim(self, message_id: str, payload: bytes) -> int | None:
        """The event this message became earlier; it is no orphan any more."""
        key = (message_id, hash(payload))
        sequence = self._sequences.pop(key, None)
        if sequence is not None:
            self._claimed.append((key, sequence))
            if more := self._more.get(key):
                self._sequences[key] = more.pop()
        return sequence

    def forget(self, settled: BitMap64, below: int) -> None:
        """Forget events that are settled: below `below` all are."""
        known = self.unclaimed()
        self._sequences, self._more, self._claimed = {}, {}, []
        for key, sequence in known:
            if sequence >= below and sequence not in settled:
                self._put(key, sequence)

    def adopt(self, others: Orphans, below: int, without: BitMap64) -> None:
        """Take over those of an earlier channel with numbers below `below`."""
        for key, sequence in [*others.unclaimed(), *others._claimed]:
            if sequence < below and sequence not in without:
                self._put(key, sequence)

    def unclaimed(self) -> list[tuple[tuple[str, int], int]]:
        more = [(key, sequence) for key, several in self._more.items() for sequence in several]
        return [*self._sequences.items(), *more]

    def _put(self, key: tuple[str, int], sequence: int) -> None:
        if key in self._sequences:
            self._more.setdefault(key, deque()).append(self._sequences[key])
        self._sequences[key] = sequence


@dataclass(frozen=True, slots=True)
class EarlierRefusal:
    """One event that was refused, as it is noted."""

    sequence: int
    message: str
    """Digest of message id and body; '' when the event is no longer in the log."""
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


def digest(message_id: str | None, payload: bytes) -> str:
    """A short name for a message, the same whenever it comes."""
    salt = blake2b((message_id or "").encode(), digest_size=16).digest()
    return blake2b(payload, digest_size=12, salt=salt).hexdigest()


def digests(first: int, events: pa.RecordBatch, wanted: Sequence[int]) -> dict[int, str]:
    """The digests of those of the events, from `first` on, whose sequence numbers are wanted."""
    places = [sequence - first for sequence in wanted if first <= sequence < first + events.num_rows]
    ids, payloads = events.column("message_id"), events.column("payload")
    return {first + place: digest(ids[place].as_py(), payloads[place].as_py()) for place in places}


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
