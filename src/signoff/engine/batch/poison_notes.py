"""What a search for poison has found so far, kept across restarts of the engine. Runs on the driver.

Only a note: what it says is confirmed before anybody is blamed, and one that cannot be read is none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from signoff.durable import write_whole


class PoisonNotes:
    """The notes of one source, about the batch that is being searched."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, start: int, end: int) -> dict[int, str]:
        """The events found in this range, with the reason."""
        try:
            known = json.loads(self._path.read_bytes())
            if known["range"] != [start, end]:
                return {}
            return {int(event): str(reason) for event, reason in known["events"].items()}
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return {}

    def write(self, start: int, end: int, found: Mapping[int, str]) -> None:
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        write_whole(self._path, json.dumps({"range": [start, end], "events": found}).encode())

    def forget(self) -> None:
        self._path.unlink(missing_ok=True)
