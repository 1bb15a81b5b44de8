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


def trim(directory: Path, upto: int, *, spare: int = 0, room_bytes: int | None = None) -> int:
    """Remove the segments in which every event is below `upto`; returns the bytes freed.

    The newest `spare` events are kept even so, for a source that must recognise them, as long as the
    whole log is no larger than `room_bytes`: what is settled never holds the source back.

    May be called by any process while the log is being written and read.
    """
    directory = Path(directory)
    segments = [first for first in list_segments(directory) if first <= upto]
    kept_from = _kept_from(directory, upto, spare)
    room = None if not spare or room_bytes is None else room_bytes - _size(directory)
    freed = removed = 0
    for first, following in pairwise(segments):
        if following > kept_from and (room is None or room + freed >= 0):
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


def _kept_from(directory: Path, upto: int, spare: int) -> int:
    """What is below may go: it is settled, and there are `spare` events after it."""
    return min(upto, (read_head(directory) or 0) - spare) if spare else upto


def _size(directory: Path) -> int:
    total = 0
    for first in list_segments(directory):
        with suppress(FileNotFoundError):
            total += segment_path(directory, first).stat().st_size
    return total
