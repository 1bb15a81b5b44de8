"""Beginning a log anew behind numbers that are used up, when the old one cannot be gone on with."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pyarrow as pa

from signoff.durable import sync_directory, write_whole
from signoff.errors import LogError
from signoff.log.head import HeadFile
from signoff.log.segment import (
    Place,
    SegmentHeader,
    decode,
    find_tail,
    list_segments,
    pack_segment_header,
    place_of_last,
    segment_path,
    unpack_segment_header,
)
from signoff.private import make_private

FRESH = ".new"


def last_whole(directory: Path) -> tuple[int, Place]:
    """Up to where a log, damaged or not, can be read, and the place of the event before; (0, …) of none."""
    for first in reversed(list_segments(directory)):
        path = segment_path(directory, first)
        try:
            data = memoryview(path.read_bytes())
            header = unpack_segment_header(data, path)
        except (OSError, LogError):
            continue
        tail = find_tail(data, header)
        if tail.last is None:
            return tail.end_sequence, header.before
        body = data[tail.last.body : tail.last.body + tail.last.length]
        return tail.end_sequence, place_of_last(decode(pa.py_buffer(bytes(body))))
    return 0, (None, None)


def begin_anew(directory: Path, first: int, before: Place, aside: Path) -> None:
    """Put a new, empty log in the place of whatever is there, which goes to `aside`.

    Its first event has the number `first`, and the source goes on after `before`. After a kill the directory
    holds the old log, the new one, or is missing; call it again then. If it is missing, `aside` with FRESH
    behind its name is the new one.
    """
    make_private(aside.parent)
    fresh = aside.with_name(aside.name + FRESH)
    shutil.rmtree(fresh, ignore_errors=True)
    make_private(fresh)
    write_whole(segment_path(fresh, first), pack_segment_header(SegmentHeader(first, before)))
    head = HeadFile(fresh)
    head.publish(first)
    head.close()
    sync_directory(fresh)
    make_private(directory.parent)
    if directory.exists():
        os.replace(directory, aside)  # noqa: PTH105
    os.replace(fresh, directory)  # noqa: PTH105
    sync_directory(aside.parent)
    sync_directory(directory.parent)
