"""What the runs of a pipeline write to standard error: kept to a bounded size, the newest last.

Invariant: what is read of it is masked first and cut then; a secret of which a part is gone is found no more.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import IO

from signoff.pipeline.secrets import redact

MOST_BYTES = 8 * 1024**2
_KEPT_BYTES = 1024**2
_TAIL_BYTES = 4_000
_MARGIN_BYTES = 256 * 1024
"""What is read and masked before the part that is shown: a secret may begin there."""


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
        """The end of it without secrets, from the beginning of a line; at most so many characters, and
        nothing before `since`."""
        content, whole = self._end(most + _MARGIN_BYTES, since)
        text = redact(content.decode(errors="replace"))
        if not whole or len(text) > most:
            text = text[-most:]
            text = text.partition("\n")[2] or text
        return text.rstrip("\n")

    def note(self, text: str) -> None:
        """Say something in it."""
        with self.open() as file:
            file.write(text.encode() + b"\n")

    def _end(self, most: int, since: int) -> tuple[bytes, bool]:
        """The last bytes, and whether that is all there is behind `since`."""
        try:
            with self._path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                since = since if since <= size else 0  # it was cut since
                start = max(since, size - most)
                file.seek(start)
                return file.read(most), start == since
        except FileNotFoundError:
            return b"", True

    def bound(self) -> None:
        """Cut it off when it is too large. What is written in the midst of that is lost: it is a log."""
        with suppress(OSError):
            if self.size() > MOST_BYTES:
                content, _ = self._end(_KEPT_BYTES, 0)
                kept = content.partition(b"\n")[2] or content
                with self._path.open("r+b") as file:
                    file.truncate(0)
                with self.open() as file:
                    file.write(kept)
