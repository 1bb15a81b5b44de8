"""Reading a log, from any process, while it is written and trimmed.

Invariants:

- Only what is durable is read, and every body is verified before it is handed out.
- Batches share memory with the mapped file: nothing is copied. A segment that is trimmed while it
  is mapped stays readable until the last batch is gone.
- Nothing past the durable end is ever touched through the mapping. The writer may cut those bytes
  off at any moment, and touching them then would be a bus error.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa

from signoff.errors import LogCorrupt, LogError
from signoff.log.head import read_head
from signoff.log.segment import (
    ALIGNMENT,
    SegmentFrame,
    body_is_whole,
    decode,
    find_tail,
    list_segments,
    segment_path,
    unpack_frame,
    unpack_segment_header,
)

_MAPPED_SEGMENTS = 2
"""A mapped segment that is trimmed keeps its room on the disk until it is unmapped."""


@dataclass(frozen=True, slots=True)
class Slice:
    """A range of a log, with the place of its first frame so that no reader has to look for it."""

    start: int
    end: int
    segment: int
    offset: int


class LogReader:
    """A view of a log that is opened lazily, locks no file, and pickles as its directory.

    Several threads may ask for slices and single events; reading through belongs to one.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = Path(directory)
        self._mapped: OrderedDict[int, _Segment] = OrderedDict()
        self._looking = threading.Lock()

    def __reduce__(self) -> tuple[type[LogReader], tuple[Path]]:
        return LogReader, (self.directory,)

    def head(self) -> int:
        """End of what is durable; 0 where there is no log yet. Cheap enough to ask every 10 ms."""
        published = read_head(self.directory)
        return self.scan() if published is None else published

    def scan(self) -> int:
        """End of what is whole in the last segment, by reading all of it.

        For when the head file is lost, or is older than the events after a loss of power.
        """
        segments = list_segments(self.directory)
        if not segments:
            return 0
        path = segment_path(self.directory, segments[-1])
        data = memoryview(path.read_bytes())  # not mapped: the tail may be cut off this moment
        return find_tail(data, unpack_segment_header(data, path)).end_sequence

    def first(self) -> int:
        """First sequence number that is still kept; 0 where there is no log yet."""
        segments = list_segments(self.directory)
        return segments[0] if segments else 0

    def read(
        self, start: int, end: int, columns: Sequence[str] | None = None
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield (first sequence, events) for all events from `start` up to `end`, in order.

        Raises LogError when some of them are trimmed or not durable yet, LogCorrupt when bytes do
        not match their checksum.
        """
        segments = self._check(start, end)
        return self._read(segments, start, end, columns)

    def read_slice(
        self, part: Slice, columns: Sequence[str] | None = None
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Like `read`, from the place a slice names."""
        segments = self._check(part.start, part.end)
        if part.start < part.end and part.segment in segments:
            self._map(part.segment).begin_at(part.offset, part.start)
        return self._read(segments, part.start, part.end, columns)

    def slices(self, start: int, end: int, count: int) -> list[Slice]:
        """Cut a range into up to `count` contiguous slices of about as many events each."""
        with self._looking:
            segments = self._check(start, end)
            return [Slice(low, high, *self._place(segments, low)) for low, high in evenly(start, end, count)]

    def size(self, start: int, end: int) -> int:
        """About how many bytes a range takes on the disk: events of one segment count as equally large."""
        segments = list_segments(self.directory)
        total = 0.0
        for first, following in pairwise([*segments, max(end, self.head())]):
            common = min(end, following) - max(start, first)
            if common > 0:
                with suppress(FileNotFoundError):  # trimmed this moment
                    total += segment_path(self.directory, first).stat().st_size * common / (following - first)
        return int(total)

    def end_after(self, begin: int) -> int:
        """End of what is durable, for somebody who has read up to `begin`."""
        head = self.head()
        if head < begin:
            # After a loss of power the head file may be older than the events and whoever read them.
            head = self.scan()
        if head < begin:
            raise LogError(
                f"[log-range] {self.directory}: it has been read up to {begin}, but the log ends at {head}; "
                "what was read belongs to another log, or the log was removed"
            )
        return head

    def within(self, begin: int, end: int, most_bytes: int | None) -> int:
        """Where a batch from `begin` must end, before `end`, to take about so many bytes at most."""
        if most_bytes is None or begin >= end:
            return end
        size = self.size(begin, end)
        return end if size <= most_bytes else begin + max((end - begin) * most_bytes // size, 1)

    def lookup(self, sequences: Iterable[int]) -> dict[int, dict[str, Any]]:
        """Single events by sequence number, as dicts of their columns; those not kept are left out."""
        with self._looking:
            return self._lookup(sequences)

    def _lookup(self, sequences: Iterable[int]) -> dict[int, dict[str, Any]]:
        end, segments = self.head(), self._segments()
        found: dict[int, dict[str, Any]] = {}
        frame: SegmentFrame | None = None
        events: pa.RecordBatch | None = None
        for sequence in sorted(set(sequences)):
            if not segments or not segments[0] <= sequence < end:
                continue
            if frame is None or sequence >= frame.end_sequence:
                segment = self._map(_segment_of(segments, sequence))
                frame = segment.find(sequence)
                events = segment.events(frame)
            assert events is not None
            found[sequence] = _as_dict(events.slice(sequence - frame.first_sequence, 1))
        return found

    # -- behind it -------------------------------------------------------------------------------

    def _check(self, start: int, end: int) -> list[int]:
        """The segments, listed after the head was read: they hold everything below it."""
        head = self.head()
        if end > head:
            head = max(head, self.scan())
        segments = self._segments()
        if not 0 <= start <= end <= head:
            raise LogError(
                f"[log-range] {self.directory}: events {start} to {end - 1} were asked for, the log ends at "
                f"{head}; a checkpoint of another log, or a log that was removed, looks like this"
            )
        if start < end and (not segments or start < segments[0]):
            raise LogError(
                f"[log-trimmed] {self.directory}: events {start} to {end - 1} were asked for, but those "
                f"below {segments[0] if segments else head} are settled and removed"
            )
        return segments

    def _read(
        self, segments: list[int], start: int, end: int, columns: Sequence[str] | None
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        while start < end:
            first = _segment_of(segments, start)
            segment = self._map(first)
            upto = min([end, *(other for other in segments if other > first)])
            while start < upto:
                frame = segment.find(start)
                events = segment.events(frame)
                stop = min(upto, frame.end_sequence)
                events = events.slice(start - frame.first_sequence, stop - start)
                yield start, events if columns is None else events.select(list(columns))
                start = stop

    def _segments(self) -> list[int]:
        segments = list_segments(self.directory)
        for trimmed in self._mapped.keys() - set(segments):
            del self._mapped[trimmed]
        return segments

    def _place(self, segments: list[int], sequence: int) -> tuple[int, int]:
        first = _segment_of(segments, sequence)
        return first, self._map(first).find(sequence).offset

    def _map(self, first: int) -> _Segment:
        segment = self._mapped.pop(first, None) or _Segment(self.directory, first)
        self._mapped[first] = segment
        while len(self._mapped) > _MAPPED_SEGMENTS:
            self._mapped.popitem(last=False)
        return segment


class _Segment:
    """A mapped segment, and the places of the frames seen in it so far."""

    def __init__(self, directory: Path, first: int) -> None:
        self.path = segment_path(directory, first)
        self._starts = [first]
        self._offsets = [ALIGNMENT]
        self._remap()
        unpack_segment_header(self._data, self.path)

    def begin_at(self, offset: int, sequence: int) -> None:
        """Go on from a frame that somebody else has found, if it is there and no closer one is known."""
        frame = unpack_frame(self._data, offset)
        if frame and self._starts[-1] < frame.first_sequence <= sequence:
            self._starts, self._offsets = [frame.first_sequence], [offset]

    def find(self, sequence: int) -> SegmentFrame:
        """The frame that holds an event, which must be durable and in this segment."""
        if sequence < self._starts[0]:
            self._starts, self._offsets = [int(self.path.stem)], [ALIGNMENT]
        index = bisect_right(self._starts, sequence) - 1
        frame = self._frame(index)
        while frame.end_sequence <= sequence:
            if index + 1 == len(self._starts):
                self._starts.append(frame.end_sequence)
                self._offsets.append(frame.end)
            index += 1
            frame = self._frame(index)
        return frame

    def events(self, frame: SegmentFrame) -> pa.RecordBatch:
        if not body_is_whole(self._data, frame):
            raise self._corrupt(frame.body, frame.first_sequence)
        return decode(self._buffer.slice(frame.body, frame.length))

    def _frame(self, index: int) -> SegmentFrame:
        offset, first = self._offsets[index], self._starts[index]
        frame = unpack_frame(self._data, offset)
        if frame is None:
            self._remap()  # it has grown since it was mapped
            frame = unpack_frame(self._data, offset)
        if frame is None or frame.first_sequence != first or not frame.rows:
            raise self._corrupt(offset, first)
        return frame

    def _remap(self) -> None:
        try:
            with pa.memory_map(str(self.path)) as file:
                self._buffer: pa.Buffer = file.read_buffer()
        except FileNotFoundError as error:
            raise LogError(
                f"[log-trimmed] {self.path}: the segment is gone; its events are settled and removed"
            ) from error
        self._data = memoryview(self._buffer)

    def _corrupt(self, offset: int, sequence: int) -> LogCorrupt:
        return LogCorrupt(
            f"[log-corrupt] {self.path}: the frame of event {sequence} at byte {offset} does not match its "
            "checksum; the events before it are whole. Restore the file from a copy; the source has not been "
            "told to forget events that are not settled"
        )


def evenly(start: int, end: int, count: int) -> list[tuple[int, int]]:
    """[start, end) in up to `count` parts of about the same size, none of them empty."""
    bounds = pairwise(start + (end - start) * part // count for part in range(count + 1))
    return [(low, high) for low, high in bounds if low < high]


def _segment_of(segments: Sequence[int], sequence: int) -> int:
    return segments[bisect_right(segments, sequence) - 1]


def _as_dict(event: pa.RecordBatch) -> dict[str, Any]:
    row: dict[str, Any] = event.to_pylist()[0]
    row["headers"] = dict(row["headers"]) if row["headers"] is not None else {}
    return row
