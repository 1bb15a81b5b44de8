"""What the runs of a pipeline write to standard error: kept to a bounded size, the newest last."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import IO

MOST_BYTES = 8 * 1024**2
_KEPT_BYTES = 1024**2
_TAIL_BYTES = 4_000


class RunLog:
    """One file, which a run appends to while it is read and cut."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def open(self) -> IO[bytes]:
        """For a new run, to write to."""
        return open(self._path, "ab", opener=lambda path, flags: os.open(path, flags, 0o600))

    def size(self) -> int:
        try:
            return self._path.stat().st_size
        except FileNotFoundError:
            return 0

    def tail(self, most: int = _TAIL_BYTES, since: int = 0) -> str:
        """The end of it, from the beginning of a line; at most so many bytes, and nothing before `since`."""
        try:
            with self._path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                since = since if since <= size else 0  # it was cut since
                start = max(since, size - most)
                file.seek(start)
                content = file.read(most)
        except FileNotFoundError:
            return ""
        if start > since:
            content = content.partition(b"\n")[2] or content
        return content.decode(errors="replace").rstrip("\n")

    def bound(self) -> None:
        """Cut it off when it is too large. What is written in the midst of that is lost: it is a log."""
        with suppress(OSError):
            if self.size() > MOST_BYTES:
                kept = self.tail(_KEPT_BYTES).encode()
                with self._path.open("r+b") as file:
                    file.truncate(0)
                with self.open() as file:
                    file.write(kept + b"\n")
