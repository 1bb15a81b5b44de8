"""Removing what is settled.

Only whole segments are removed, oldest first, and never the last one: it knows where the source
stood. The writer begins a new segment as soon as one is finished, so a log that is settled
altogether shrinks to less than one segment.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from signoff.durable import sync_directory
from signoff.log.head import read_head
from signoff.log.segment import list_segments, segment_path


def trim(
    directory: Path,
    upto: int,
    *,
    spare: int = 0,
    kept_from: int | None = None,
    room_bytes: int | None = None,
) -> int:
    """Remove the segments in which every event is below `upto`; returns the bytes freed.

    The newest `spare` events are kept even so, and all from `kept_from` on, for a source that must
    recognise them, as long as the whole log is no larger than `room_bytes`: what is settled never holds the
    source back.

    May be called by any process while the log is being written and read.
    """
    directory = Path(directory)
    segments = [first for first in list_segments(directory) if first <= upto]
    needed_from = _needed_from(directory, upto, spare, kept_from)
    room = None if needed_from == upto or room_bytes is None else room_bytes - _size(directory)
    freed = removed = 0
    for first, following in pairwise(segments):
        if following > needed_from and (room is None or room + freed >= 0):
            break
        path = segment_path(directory, first)
        try:
            size = path.stat().st_size
            path.unlink()
        except FileNotFoundError:  # another process trims too
            continue
        freed, removed = freed + size, removed + 1
    if removed:
        sync_directory(directory)
    return freed


def _needed_from(directory: Path, upto: int, spare: int, kept_from: int | None) -> int:
    """What is below may go: it is settled, there are `spare` events after it, and nobody asks for it."""
    limits = [upto]
    if spare:
        limits.append((read_head(directory) or 0) - spare)
    if kept_from is not None:
        limits.append(kept_from)
    return min(limits)


def _size(directory: Path) -> int:
    total = 0
    for first in list_segments(directory):
        with suppress(FileNotFoundError):
            total += segment_path(directory, first).stat().st_size
    return total
