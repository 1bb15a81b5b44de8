"""Who changed what, and when: a line of JSON for each change, on disk before it is done.

What was refused is there too, with why. No text of a pipeline, no payload and no secret is in it.
"""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from pathlib import Path
from typing import Any

from signoff.clock import when

MOST_BYTES = 32 * 1024**2


class Trail:
    """A file that is only appended to; at its bound it becomes `trail.1.jsonl`, in the place of the one
    before."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()

    def add(self, at: float, token: str, action: str, target: str, outcome: str) -> None:
        line = {"at": when(at), "token": token, "action": action, "target": target, "outcome": outcome}
        with self._lock:
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.write(file, json.dumps(line).encode() + b"\n")
                os.fsync(file)
                size = os.fstat(file).st_size
            finally:
                os.close(file)
            if size > MOST_BYTES:
                self._path.replace(self._path.with_suffix(".1.jsonl"))

    def last(self, count: int) -> list[dict[str, Any]]:
        """The newest lines, the oldest of them first. One that a loss of power has torn is left out."""
        found: deque[dict[str, Any]] = deque(maxlen=count)
        try:
            with self._path.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 1000 * count))
                for line in file:
                    try:
                        found.append(json.loads(line))
                    except ValueError:
                        continue
        except FileNotFoundError:
            return []
        return list(found)
