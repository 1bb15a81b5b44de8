"""Removing what is settled.

Only whole segments are removed, oldest first, and never the last one: it knows where the source
stood. The writer begins a new segment as soon as one is finished, so a log that is settled
altogether shrinks to less than one segment.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from signoff.log.durable import sync_directory
from signoff.log.segment import list_segments, segment_path


def trim(directory: Path, upto: int) -> int:
    """Remove the segments in which every event is below `upto`; returns the bytes freed.

    May be called by any process while the log is being written and read.
    """
    directory = Path(directory)
    freed = removed = 0
    for first, following in pairwise(list_segments(directory)):
        if following > upto:
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
