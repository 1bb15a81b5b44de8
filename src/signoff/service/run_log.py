"""What the runs of a pipeline write to standard error: kept to a bounded size, the newest last.

Invariant: it is cut in the midst of no secret, neither the file nor what is read of it: a secret of which a
part is gone is found no more.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import IO

from signoff.pipeline.masking import line_outside, redact
from signoff.service.secret_store import MOST_BYTES as MOST_BYTES_OF_SECRET

MOST_BYTES = 8 * 1024**2
_KEPT_BYTES = 1024**2
_TAIL_BYTES = 4_000
_MARGIN_BYTES = 6 * MOST_BYTES_OF_SECRET
"""What is read before the part that is kept or shown: a secret may begin there. Escaped in JSON or HTML, a
character is six."""


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
        text = redact(self._end(most, since).decode(errors="replace"))
        if len(text) > most:  # of bytes, the mask of a short secret has more
            text = text[-most:]
            text = text.partition("\n")[2] or text
        return text.rstrip("\n")

    def note(self, text: str) -> None:
        """Say something in it."""
        with self.open() as file:
            file.write(text.encode() + b"\n")

    def _end(self, most: int, since: int) -> bytes:
        """The last of it, from a place behind `since` that is outside of secrets; at most so many bytes."""
        try:
            with self._path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                since = since if since <= size else 0  # it was cut since
                start = max(since, size - most)
                file.seek(before := max(0, start - _MARGIN_BYTES))
                head = file.read(start - before)
                content = head + file.read(size - start)
        except FileNotFoundError:
            return b""
        text = content.decode(errors="surrogateescape")
        place = line_outside(text, len(head.decode(errors="surrogateescape")))
        return text[place:].encode(errors="surrogateescape")

    def bound(self) -> None:
        """Cut it off when it is too large. What is written in the midst of that is lost: it is a log."""
        with suppress(OSError):
            if self.size() > MOST_BYTES:
                kept = self._end(_KEPT_BYTES, 0)
                with self._path.open("r+b") as file:
                    file.truncate(0)
                with self.open() as file:
                    file.write(kept)
