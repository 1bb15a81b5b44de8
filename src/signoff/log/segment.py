"""The format of a log on disk.

    <directory>/
      00000000000000000000.log   a segment; its name is the sequence number of its first event
      00000000000000183000.log
      head                       durable end of the log (see `head.py`)
      excluded                   events withheld from Spark (see `exclusions.py`)

    segment  =  segment header, 64 bytes, then frames one after the other
    frame    =  frame header, 64 bytes, then body, then zeros up to the next multiple of 64
    body     =  one encapsulated Arrow IPC record batch message of EVENT_SCHEMA, without its schema

All integers are little endian. Bodies begin at multiples of 64 bytes, so that a mapped file is an
Arrow record batch without a copy.

Invariants:

- Events are numbered without gaps: a frame begins where the one before it ended, and a segment
  begins where the one before it ended.
- A segment appears under its name only with a whole, durable header (written aside, renamed), and
  only after everything in the segments before it is durable. So only the last segment can have a
  torn tail.
- A frame counts if its header and its body match their checksums. The header has a checksum of its
  own: frames can be skipped without reading their bodies.
- A segment header repeats `unit`, `position` and time of receipt of the event before it, so that the place
  of the source is known even when every older segment has been removed.
- Times of receipt never go backwards, whatever becomes of the clock.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from signoff.errors import LogCorrupt, LogError
from signoff.log.event_schema import EVENT_SCHEMA

ALIGNMENT = 64
VERSION = 1

_SEGMENT_MAGIC = b"SIGNOFFL"
_SEGMENT = struct.Struct("<8sIIQQqqI")
"""magic, version, which of unit (1) and position (2) are known, schema fingerprint, first sequence,
unit, position, crc32 of all before."""
_LATEST = struct.Struct("<qI")
"""Time of receipt of the event before, crc32 of it. Zeros in what older releases wrote."""
_FRAME_MAGIC = b"\xf5FRM"
_FRAME = struct.Struct("<4sIQQII")
"""magic, rows, length of the body, first sequence, crc32 of the body, crc32 of all before."""
_NAME = re.compile(r"^(\d{20})\.log$")

Place = tuple[int | None, int | None]
"""(unit, position) of an event, as its source wrote them."""


def _fingerprint(schema: pa.Schema) -> int:
    text = ";".join(f"{field.name}:{field.type}:{field.nullable}" for field in schema)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


FINGERPRINT = _fingerprint(EVENT_SCHEMA)


class SegmentHeader(NamedTuple):
    first_sequence: int
    before: Place
    """Place of the event before the first one; (None, None) at the very beginning."""
    latest: int = 0
    """When the event before the first one was received, in microseconds; 0 where nobody has noted it."""


class SegmentFrame(NamedTuple):
    """Where a record batch lies in its segment."""

    offset: int
    first_sequence: int
    rows: int
    length: int
    checksum: int

    @property
    def body(self) -> int:
        return self.offset + ALIGNMENT

    @property
    def end_sequence(self) -> int:
        return self.first_sequence + self.rows

    @property
    def end(self) -> int:
        return self.body + padded(self.length)


class Tail(NamedTuple):
    """How far a segment is whole."""

    end: int
    """Bytes that are whole."""
    end_sequence: int
    last: SegmentFrame | None


def instead_of(directory: Path) -> str:
    """What can be done about a log that is damaged, besides restoring it."""
    if directory.parent.name != "log":
        return "restore it from a copy"
    return (
        "restore it from a copy, or discard what is in flight and continue with new numbers: "
        f"signoff sources reset FILE {directory.name}"
    )


def padded(length: int) -> int:
    return -(-length // ALIGNMENT) * ALIGNMENT


def segment_path(directory: Path, first_sequence: int) -> Path:
    return directory / f"{first_sequence:020d}.log"


def list_segments(directory: Path) -> list[int]:
    """First sequence numbers of the segments, in order; empty where there is no directory."""
    try:
        names = os.listdir(directory)  # noqa: PTH208  (polled: names are enough, no Path each)
    except FileNotFoundError:
        return []
    return sorted(int(match[1]) for match in map(_NAME.match, names) if match)


def pack_segment_header(header: SegmentHeader) -> bytes:
    unit, position = header.before
    known = (unit is not None) | (position is not None) << 1
    content = _SEGMENT.pack(
        _SEGMENT_MAGIC, VERSION, known, FINGERPRINT, header.first_sequence, unit or 0, position or 0, 0
    )[:-4]
    latest = header.latest.to_bytes(8, "little", signed=True)
    return (
        content
        + zlib.crc32(content).to_bytes(4, "little")
        + _LATEST.pack(header.latest, zlib.crc32(latest) if header.latest else 0)
    ).ljust(ALIGNMENT, b"\0")


def unpack_segment_header(data: memoryview, path: Path) -> SegmentHeader:
    """Read the header of the segment at `path`; raises LogCorrupt, or LogError for another version."""
    if len(data) < ALIGNMENT:
        raise LogCorrupt(
            f"[log-corrupt] {path}: the segment has {len(data)} bytes, too few for its header of "
            f"{ALIGNMENT}; {instead_of(path.parent)}"
        )
    magic, version, known, fingerprint, first, unit, position, checksum = _SEGMENT.unpack_from(data)
    if magic != _SEGMENT_MAGIC or zlib.crc32(data[: _SEGMENT.size - 4]) != checksum:
        raise LogCorrupt(
            f"[log-corrupt] {path}: the header of the segment does not match its checksum; "
            f"{instead_of(path.parent)}"
        )
    if version != VERSION or fingerprint != FINGERPRINT:
        raise LogError(
            f"[log-version] {path}: the segment has format {version} (events {fingerprint:016x}), this "
            f"release reads format {VERSION} (events {FINGERPRINT:016x}); finish the log with the "
            "release that wrote it"
        )
    if path.name != f"{first:020d}.log":
        raise LogCorrupt(f"[log-corrupt] {path}: the header says the first event is {first}; rename it back")
    latest, checksum = _LATEST.unpack_from(data, _SEGMENT.size)
    if zlib.crc32(latest.to_bytes(8, "little", signed=True)) != checksum:
        latest = 0
    return SegmentHeader(first, (unit if known & 1 else None, position if known & 2 else None), latest)


def encoded_size(events: pa.RecordBatch) -> int:
    """Bytes of the body of a frame with these events. Cheaper than `nbytes`, and true for slices."""
    return int(pa.ipc.get_record_batch_size(events))


def pack_frame(first_sequence: int, events: pa.RecordBatch) -> list[bytes | memoryview]:
    """The pieces of one frame, to be written one after the other."""
    body = memoryview(events.serialize())
    head = _FRAME.pack(_FRAME_MAGIC, events.num_rows, len(body), first_sequence, zlib.crc32(body), 0)[:-4]
    header = (head + zlib.crc32(head).to_bytes(4, "little")).ljust(ALIGNMENT, b"\0")
    return [header, body, bytes(padded(len(body)) - len(body))]


def unpack_frame(data: memoryview, offset: int) -> SegmentFrame | None:
    """The frame whose header is at `offset`, or None if no whole frame with a valid header is there."""
    if offset + ALIGNMENT > len(data):
        return None
    magic, rows, length, first, body_checksum, checksum = _FRAME.unpack_from(data, offset)
    if magic != _FRAME_MAGIC or zlib.crc32(data[offset : offset + _FRAME.size - 4]) != checksum:
        return None
    frame = SegmentFrame(offset, first, rows, length, body_checksum)
    return frame if frame.end <= len(data) else None


def body_is_whole(data: memoryview, frame: SegmentFrame) -> bool:
    return zlib.crc32(data[frame.body : frame.body + frame.length]) == frame.checksum


def whole_frames(data: memoryview, first_sequence: int) -> Iterator[SegmentFrame]:
    """Frames from the start of a segment on, each verified, up to the first that is not whole."""
    offset = ALIGNMENT
    while (frame := unpack_frame(data, offset)) and frame.first_sequence == first_sequence:
        if not body_is_whole(data, frame):
            return
        yield frame
        offset, first_sequence = frame.end, frame.end_sequence


def find_tail(data: memoryview, header: SegmentHeader, upto: int | None = None) -> Tail:
    """How far a segment is whole; with `upto`, not beyond the frame that begins there."""
    tail = Tail(ALIGNMENT, header.first_sequence, None)
    for frame in whole_frames(data, header.first_sequence):
        if upto is not None and frame.first_sequence >= upto:
            break
        tail = Tail(frame.end, frame.end_sequence, frame)
    return tail


def decode(body: pa.Buffer) -> pa.RecordBatch:
    """The record batch of a frame's body; shares the body's memory."""
    return pa.ipc.read_record_batch(pa.ipc.read_message(body), EVENT_SCHEMA)


def latest_of(events: pa.RecordBatch) -> int:
    """The latest time of receipt, in microseconds."""
    return int(np.asarray(events.column("received_at").cast(pa.int64())).max())


def never_backwards(events: pa.RecordBatch, latest: int) -> pa.RecordBatch:
    """The events with times of receipt that are not before `latest`, nor before those of the ones before."""
    times = np.asarray(events.column("received_at").cast(pa.int64()))
    if times[0] >= latest and (times == times[0]).all():
        return events  # what a source hands out was received at one time
    grown = np.maximum.accumulate(np.maximum(times, latest))
    if np.array_equal(grown, times):
        return events
    place = events.schema.get_field_index("received_at")
    kind = events.schema.field(place)
    return events.set_column(place, kind, pa.array(grown).cast(kind.type))


def place_of_last(events: pa.RecordBatch) -> Place:
    last = events.num_rows - 1
    return events.column("unit")[last].as_py(), events.column("position")[last].as_py()
