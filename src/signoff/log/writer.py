"""Appending to a log: group commit, roll, recovery, and a size limit.

Invariants:

- What `durable_sequence` covers is fsynced; what it does not cover is in memory, and nowhere else
  once `sync` has returned or raised.
- A failed `sync` leaves the segment as it was before and keeps the events: it can be called again, or the
  events can be taken back with `withdraw`.
- A new segment is the one that is written to as soon as it has its name, whatever fails then: whoever trims
  the log sees by it that the one before is finished. Nothing in it is durable before its name is.
- Opening a log cuts off a torn tail (bytes that were written but never reported durable), and
  refuses a log that has lost bytes which were reported durable.

One thread of one process writes: the directory is locked (flock on the directory itself, so that a
second writer is refused even within the same process). Readers and `trim` need no lock.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import mmap
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pyarrow as pa

from signoff.durable import TEMPORARY, sync_directory
from signoff.errors import LogCorrupt, LogError, LogFull, LogNoSpace
from signoff.log.event_schema import EVENT_SCHEMA
from signoff.log.head import HeadFile, read_head
from signoff.log.segment import (
    ALIGNMENT,
    Place,
    SegmentHeader,
    decode,
    encoded_size,
    find_tail,
    instead_of,
    latest_of,
    list_segments,
    never_backwards,
    pack_frame,
    pack_segment_header,
    place_of_last,
    segment_path,
    unpack_segment_header,
)
from signoff.private import make_private

if TYPE_CHECKING:
    from signoff.pipeline.model import LogSettings

logger = logging.getLogger(__name__)

_FRAME_BYTES = 8 * 1024**2
"""A frame is what a reader decodes at a time; larger ones only cost memory there."""
_RETRY_S = 0.25
_BEHIND_S = 1.0
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class LogWriter:
    """The one writer of a log, in the intake process."""

    next_sequence: int
    """Sequence number the next event will get."""
    durable_sequence: int
    """All events below are fsynced."""
    last: Place
    """(unit, position) of the last durable event; (None, None) if there never was one."""

    def __init__(
        self,
        directory: Path,
        settings: LogSettings,
        now: Callable[[], float] = time.monotonic,
        *,
        keep_upto: int | None = None,
    ) -> None:
        """`keep_upto`: what lies behind was never published, and is cut off like a torn tail."""
        self._directory = Path(directory)
        self._keep_upto = keep_upto
        self._max_bytes = settings.max_bytes
        # A log must be able to shrink below its limit by removing whole segments.
        self._segment_bytes = min(settings.segment_bytes, settings.max_bytes // 4)
        self._sync_s = settings.sync_ms / 1000
        self._sync_bytes = settings.sync_bytes
        self._now = now
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = 0
        self._pending_since = 0.0
        self._retry_at: float | None = None
        self._failure: LogError | None = None
        make_private(self._directory)
        self._lock = _lock(self._directory)
        self._segment = -1
        self._other_bytes = 0
        self._torn = False
        self._latest = 0
        """No event is received before: in microseconds."""
        self._clock_is_behind = False
        self._unnamed = False
        """The name of the segment that is written to may not be durable."""
        self._published = 0
        self._published_place: tuple[int, int, Place] = (0, 0, (None, None))
        try:
            self._head = HeadFile(self._directory)
            try:
                self._recover()
            except BaseException:
                self._head.close()
                raise
        except BaseException:
            if self._segment >= 0:
                os.close(self._segment)
            os.close(self._lock)
            raise

    def append(self, events: pa.RecordBatch) -> int:
        """Take events (EVENT_SCHEMA) into the next group commit; returns the first one's sequence.

        They are durable once `durable_sequence` has passed them. Raises LogFull, and takes nothing,
        when the log holds as many bytes as it may; the last batch taken may overshoot the limit.
        """
        return self.append_all([events])

    def append_all(self, pieces: Sequence[pa.RecordBatch]) -> int:
        """As `append`, for events in several pieces: all of them are taken, or none."""
        for events in pieces:
            _check(events)
        self._admit()
        first = self.next_sequence
        for given in pieces:
            if given.num_rows:
                events = self._in_time(given)
                if not self._pending:
                    self._pending_since = self._now()
                self._pending.append(events)
                self._pending_bytes += encoded_size(events)
                self.next_sequence += events.num_rows
        return first

    def _in_time(self, given: pa.RecordBatch) -> pa.RecordBatch:
        """The events, received no sooner than those before, also when the clock was set back."""
        events = never_backwards(given, self._latest)
        behind_s = (latest_of(events) - latest_of(given)) / 1e6
        if behind_s > _BEHIND_S and not self._clock_is_behind:
            logger.warning(
                "%s: the clock is %.0f s behind the last event's time of receipt; until it has caught up, "
                "events count as received then",
                self._directory,
                behind_s,
            )
        self._clock_is_behind = behind_s > _BEHIND_S
        self._latest = latest_of(events)
        return events

    def sync_due_in(self) -> float | None:
        """Seconds until `sync` should be called; None while nothing waits for it."""
        if self._retry_at is not None:
            return max(0.0, self._retry_at - self._now())
        if not self._pending:
            return None
        if self._pending_bytes >= self._sync_bytes:
            return 0.0
        return max(0.0, self._pending_since + self._sync_s - self._now())

    def sync(self) -> int:
        """Make everything appended durable, tell the readers, and return `durable_sequence`.

        Raises LogNoSpace when the disk, a quota or a file size limit leaves no room, LogError for
        other failures of the disk. The events are kept then, and the next call tries again.
        """
        try:
            if self._pending:
                self._commit()
            if self._published != self.durable_sequence:
                self._publish()
        except OSError as error:
            self._fail(error)
        self._retry_at = self._failure = None
        self._roll_if_due()
        return self.durable_sequence

    def withdraw(self) -> bool:
        """Take back what was appended and never reported durable: after a `sync` that failed, for who does
        not try it again. Nobody has seen any of it, and this writer shows it to nobody.

        False: it could not be cut off durably. A writer that opens the log anew may find it whole, unless it
        is told by `keep_upto`. May be called again, until it returns True."""
        self._pending, self._pending_bytes = [], 0
        self._retry_at = self._failure = None
        if self.durable_sequence != self._published:
            # Synced, but no reader could be told.
            self._segment_end, self.durable_sequence, self.last = self._published_place
        self.next_sequence = self.durable_sequence
        self._torn = True
        with suppress(OSError):
            os.ftruncate(self._segment, self._segment_end)
            self._torn = False
            os.fdatasync(self._segment)
            return True
        return False

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments on disk; read from the directory, because readers trim it."""
        self._other_bytes = sum(
            _size(segment_path(self._directory, first))
            for first in list_segments(self._directory)
            if first != self._segment_first
        )
        return self._other_bytes + self._segment_end

    def close(self) -> None:
        """Sync what is pending and release the log. It is released even if the sync fails."""
        if self._lock < 0:
            return
        try:
            self.sync()
        finally:
            self._head.close()
            os.close(self._segment)
            os.close(self._lock)
            self._lock = self._segment = -1

    # -- recovery --------------------------------------------------------------------------------

    def _recover(self) -> None:
        for leftover in self._directory.glob(f"*.log{TEMPORARY}"):
            leftover.unlink()
        published = read_head(self._directory) or 0
        segments = list_segments(self._directory)
        if segments:
            self._open_last(segments[-1], published)
        elif published:
            raise LogCorrupt(
                f"[log-corrupt] {self._directory}: {published} events were logged, but no segment is left; "
                f"{instead_of(self._directory)}"
            )
        else:
            self._begin_segment(0, (None, None))
            self._sync_name()
        self.next_sequence = self.durable_sequence
        self._publish()
        self._roll_if_due()
        _ = self.size_bytes

    def _open_last(self, first: int, published: int) -> None:
        path = segment_path(self._directory, first)
        self._segment = os.open(path, os.O_RDWR)
        self._segment_first = first
        data = _contents(self._segment)
        header = unpack_segment_header(data, path)
        tail = find_tail(data, header, self._keep_upto)
        if tail.end_sequence < published:
            raise LogCorrupt(
                f"[log-corrupt] {path}: events {tail.end_sequence} to {published - 1} were durable, but the "
                f"bytes from {tail.end} on do not match their checksums; {instead_of(self._directory)}"
            )
        self.last, self._latest = header.before, header.latest
        if tail.last:
            body = data[tail.last.body : tail.last.body + tail.last.length]
            events = decode(pa.py_buffer(bytes(body)))
            self.last, self._latest = place_of_last(events), max(self._latest, latest_of(events))
        elif not self._latest:
            self._latest = self._latest_before(first)
        if tail.end < len(data):
            os.ftruncate(self._segment, tail.end)
        # Whole frames after the published head may be in the page cache only.
        os.fsync(self._segment)
        sync_directory(self._directory)
        self._segment_end = tail.end
        self.durable_sequence = tail.end_sequence

    def _latest_before(self, first: int) -> int:
        """When the last event of the segment before was received; 0 if there is none."""
        before = [segment for segment in list_segments(self._directory) if segment < first]
        if not before:
            return 0
        path = segment_path(self._directory, before[-1])
        data = memoryview(path.read_bytes())
        tail = find_tail(data, unpack_segment_header(data, path))
        if not tail.last:
            return 0
        return latest_of(decode(pa.py_buffer(bytes(data[tail.last.body :][: tail.last.length]))))

    # -- writing ---------------------------------------------------------------------------------

    def _admit(self) -> None:
        if self._failure:
            raise type(self._failure)(*self._failure.args)
        if self._other_bytes + self._segment_end + self._pending_bytes < self._max_bytes:
            return
        self._roll_if_due()
        used = self.size_bytes + self._pending_bytes
        if used >= self._max_bytes:
            raise LogFull(
                f"[log-full] {self._directory}: the log holds {used} of {self._max_bytes} bytes "
                "(log.max_bytes); nothing is lost, the source is held back until events are settled"
            )

    def _commit(self) -> None:
        if self._torn:
            os.ftruncate(self._segment, self._segment_end)
        self._sync_name()
        self._torn = True
        sequence, end = self.durable_sequence, self._segment_end
        last = self._pending[-1]
        for events in _frames(self._pending):
            end = _write(self._segment, pack_frame(sequence, events), end)
            sequence += events.num_rows
        os.fdatasync(self._segment)
        self._torn = False
        self._segment_end, self.durable_sequence = end, sequence
        self.last = place_of_last(last)
        self._pending, self._pending_bytes = [], 0

    def _publish(self) -> None:
        self._head.publish(self.durable_sequence)
        self._published = self.durable_sequence
        self._published_place = self._segment_end, self.durable_sequence, self.last

    def _fail(self, error: OSError) -> NoReturn:
        """Undo a partial write. After a failed fsync too: what the disk holds then is unknown, and a
        second fsync of the same pages would report success."""
        with suppress(OSError):
            if self._torn:
                os.ftruncate(self._segment, self._segment_end)
                self._torn = False
        self._retry_at = self._now() + _RETRY_S
        waiting = self.next_sequence - self.durable_sequence
        if error.errno in _NO_SPACE:
            self._failure = LogNoSpace(
                f"[log-no-space] {self._directory}: {error.strerror}; nothing is lost, {waiting} events "
                "wait in memory and the source is held back until there is room"
            )
        else:
            self._failure = LogError(
                f"[log-io] {self._directory}: {error.strerror}; {waiting} events wait in memory and the "
                "source is held back; check the disk"
            )
        raise self._failure from error

    def _roll_if_due(self) -> None:
        """Begin a new segment once this one is large and all of it is durable.

        Done early, not with the next write: a finished segment can be trimmed. A failure (a full
        disk) only means that this segment grows on.
        """
        if self._segment_end < self._segment_bytes or self._torn:
            return
        old, old_end = self._segment, self._segment_end
        with suppress(OSError):
            self._begin_segment(self.durable_sequence, self.last)
            self._other_bytes += old_end
            os.close(old)
            self._sync_name()

    def _begin_segment(self, first: int, before: Place) -> None:
        """Raises OSError if it has no name yet; then nothing has changed."""
        path = segment_path(self._directory, first)
        aside = path.with_name(path.name + TEMPORARY)
        descriptor = os.open(aside, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            _write(descriptor, [pack_segment_header(SegmentHeader(first, before, self._latest))], 0)
            os.fsync(descriptor)
            os.replace(aside, path)  # noqa: PTH105  (one call, one meaning)
        except OSError:
            os.close(descriptor)
            with suppress(OSError):
                aside.unlink()
            raise
        self._segment, self._segment_first, self._segment_end = descriptor, first, ALIGNMENT
        self.durable_sequence, self.last = first, before
        self._published_place = ALIGNMENT, first, before
        self._unnamed = True

    def _sync_name(self) -> None:
        if self._unnamed:
            sync_directory(self._directory)
            self._unnamed = False


def _lock(directory: Path) -> int:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise LogError(
            f"[log-locked] {directory}: another process is writing this log; stop the other run first"
        ) from error
    return descriptor


def _contents(descriptor: int) -> memoryview:
    size = os.fstat(descriptor).st_size
    return memoryview(mmap.mmap(descriptor, size, access=mmap.ACCESS_READ) if size else b"")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # trimmed this moment
        return 0


def _check(events: pa.RecordBatch) -> None:
    if not events.schema.equals(EVENT_SCHEMA):
        raise LogError(
            f"[log-schema] events must have the columns of EVENT_SCHEMA\n{EVENT_SCHEMA}\n"
            f"but these were given\n{events.schema.remove_metadata()}"
        )
    for field in EVENT_SCHEMA:
        if not field.nullable and events.column(field.name).null_count:
            raise LogError(f'[log-schema] column "{field.name}" of an event must not be null')


def _frames(pending: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Small batches combined, large ones cut: one frame per `_FRAME_BYTES`, or one event if larger."""
    frames: list[pa.RecordBatch] = []
    group: list[pa.RecordBatch] = []
    group_bytes = 0
    for events in pending:
        size = encoded_size(events)
        if group and group_bytes + size > _FRAME_BYTES:
            frames.append(_united(group))
            group, group_bytes = [], 0
        if size > _FRAME_BYTES:
            frames.extend(_cut(events))
        else:
            group.append(events)
            group_bytes += size
    return [*frames, _united(group)] if group else frames


def _cut(events: pa.RecordBatch) -> list[pa.RecordBatch]:
    """Halve until each piece is small enough; sizes of events may differ a lot."""
    if events.num_rows == 1 or encoded_size(events) <= _FRAME_BYTES:
        return [events]
    half = events.num_rows // 2
    return _cut(events.slice(0, half)) + _cut(events.slice(half))


def _united(group: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return group[0] if len(group) == 1 else pa.Table.from_batches(group).combine_chunks().to_batches()[0]


def _write(descriptor: int, pieces: Sequence[bytes | memoryview], offset: int) -> int:
    """Write all pieces at `offset`, however few bytes the system takes at a time; returns the end."""
    for piece in pieces:
        rest = memoryview(piece)
        while rest:
            written = os.pwrite(descriptor, rest, offset)
            rest, offset = rest[written:], offset + written
    return offset
