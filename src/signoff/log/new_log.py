"""A new log in place of one that cannot be continued; its numbers follow those that were used."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pyarrow as pa

from signoff.durable import sync_directory, write_whole
from signoff.errors import LogError
from signoff.log.head import HeadFile
from signoff.log.segment import (
    SegmentHeader,
    decode,
    find_tail,
    latest_of,
    list_segments,
    pack_segment_header,
    place_of_last,
    segment_path,
    unpack_segment_header,
)
from signoff.private import make_private

FRESH = ".new"


def last_whole(directory: Path) -> SegmentHeader:
    """Where a new log continues after all that can be read of the old one, damaged or not: number, place and
    time."""
    found: SegmentHeader | None = None
    for first in reversed(list_segments(directory)):
        path = segment_path(directory, first)
        try:
            data = memoryview(path.read_bytes())
            header = unpack_segment_header(data, path)
        except (OSError, LogError):
            continue
        tail = find_tail(data, header)
        latest = header.latest
        if tail.last is not None:
            body = data[tail.last.body : tail.last.body + tail.last.length]
            events = decode(pa.py_buffer(bytes(body)))
            latest = max(latest, latest_of(events))
            header = SegmentHeader(tail.end_sequence, place_of_last(events), latest)
        found = found._replace(latest=latest) if found else header
        if latest:  # if not, older releases have not noted it where nothing was received since
            break
    return found or SegmentHeader(0, (None, None))


def begin_anew(directory: Path, header: SegmentHeader, aside: Path) -> None:
    """Put a new, empty log in the place of whatever is there, which goes to `aside`.

    `header` says which number its first event has, after which place the source goes on, and before which
    time nothing is received. After a kill the directory holds the old log, the new one, or is missing; call
    it again then. If it is missing, `aside` with FRESH behind its name is the new one.
    """
    make_private(aside.parent)
    fresh = aside.with_name(aside.name + FRESH)
    shutil.rmtree(fresh, ignore_errors=True)
    make_private(fresh)
    write_whole(segment_path(fresh, header.first_sequence), pack_segment_header(header))
    head = HeadFile(fresh)
    head.publish(header.first_sequence)
    head.close()
    sync_directory(fresh)
    make_private(directory.parent)
    if directory.exists():
        os.replace(directory, aside)  # noqa: PTH105
    os.replace(fresh, directory)  # noqa: PTH105
    sync_directory(aside.parent)
    sync_directory(directory.parent)
