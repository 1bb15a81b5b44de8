"""Which type of source wrote the place of a log's last event: the source as it is now, or an earlier one of
another type.

`unit` and `position` mean something to the type of source that wrote them: a file's number, a request's, an
offset. When a source gets another type and keeps its name, the new one must not go on from there: it might
skip what it has never read.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from signoff.durable import write_whole

NOTE = "source.json"
Place = tuple[int | None, int | None]


def own_place(directory: Path, kind: str, next_sequence: int, last: Place) -> Place:
    """The place to go on from, noting durably from which event on the source is of this type."""
    path, known = directory / NOTE, None
    with suppress(FileNotFoundError, ValueError, KeyError, TypeError):
        found = json.loads(path.read_bytes())
        known = str(found["type"]), int(found["from"])
    if known is None:  # new, or of a release that noted nothing
        known = kind, 0
        write_whole(path, json.dumps({"type": kind, "from": 0}).encode())
    elif known[0] != kind:
        known = kind, next_sequence
        write_whole(path, json.dumps({"type": kind, "from": next_sequence}).encode())
    return last if next_sequence > known[1] else (None, None)
