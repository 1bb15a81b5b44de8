"""Who changed what, and when: a line of JSON for each change, on disk before it is done.

What was refused is there too, with why: in full a few times a minute, and then as a number, so that whoever
is refused again and again pushes no change out of the file. No text of a pipeline, no payload and no secret
is in it.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from signoff.clock import when

MOST_BYTES = 32 * 1024**2
_LONGEST_LINE = 2000
"""The name of a token has 100 characters at most, which are up to 12 bytes in JSON."""
REFUSALS, REFUSALS_S = 20, 60.0
"""So many refusals of a token are written in this time; of the rest their number."""


@dataclass
class _Refused:
    """What a token was refused in the time that began with the first of it."""

    began: float
    count: int = 0
    last: float = 0.0
    """Seconds since the epoch."""


class Trail:
    """A file that is only appended to; at its bound it becomes `trail.1.jsonl`, in the place of the one
    before."""

    def __init__(self, path: Path, now: Callable[[], float] = time.monotonic) -> None:
        self._path, self._lock, self._now = path, threading.Lock(), now
        self._refused: dict[str, _Refused] = {}

    def add(self, at: float, token: str, action: str, target: str, outcome: str) -> None:
        with self._lock:
            self._count_refusals()
            self._append(_line(at, token, action, target, outcome))

    def refuse(self, at: float, token: str, action: str, target: str, outcome: str) -> None:
        """Something was not done. Costs the disk nothing where that happens often."""
        with self._lock:
            self._count_refusals()
            refused = self._refused.setdefault(token, _Refused(self._now()))
            refused.count, refused.last = refused.count + 1, at
            if refused.count <= REFUSALS:
                self._append(_line(at, token, action, target, outcome))

    def last(self, count: int) -> list[dict[str, Any]]:
        """The newest lines, the oldest of them first. One that a loss of power has torn is left out."""
        with self._lock:
            self._count_refusals()
        found: deque[dict[str, Any]] = deque(maxlen=count)
        try:
            with self._path.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _LONGEST_LINE * count))
                for line in file:
                    try:
                        found.append(json.loads(line))
                    except ValueError:
                        continue
        except FileNotFoundError:
            return []
        return list(found)

    def _count_refusals(self) -> None:
        """Say how many there were of which no line was written, once their time is over."""
        for token, refused in list(self._refused.items()):
            if self._now() - refused.began >= REFUSALS_S:
                del self._refused[token]
                if (more := refused.count - REFUSALS) > 0:
                    self._append(_line(refused.last, token, "", "", f"refused: {more} more within a minute"))

    def _append(self, line: dict[str, str | None]) -> None:
        """All of the line, on disk, or nothing of it and an OSError: what is asked is then not done."""
        file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            before = os.fstat(file).st_size
            torn = before > 0 and os.pread(file, 1, before - 1) != b"\n"  # by a loss of power
            try:
                _write(file, b"\n" * torn + json.dumps(line).encode() + b"\n")
                os.fsync(file)
            except OSError:
                with suppress(OSError):
                    os.ftruncate(file, before)
                raise
            size = os.fstat(file).st_size
        finally:
            os.close(file)
        if size > MOST_BYTES:
            self._path.replace(self._path.with_suffix(".1.jsonl"))


def _write(file: int, content: bytes) -> None:
    """A disk that is nearly full takes a part, and says why it takes no more when asked for the rest."""
    while content:
        content = content[os.write(file, content) :]


def _line(at: float, token: str, action: str, target: str, outcome: str) -> dict[str, str | None]:
    return {"at": when(at), "token": token, "action": action, "target": target, "outcome": outcome}
