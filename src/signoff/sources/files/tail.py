"""One file that is being followed: its lines as they are written, and whether it is still the same file.

What it keeps: a line is handed out when its newline is there, or when the file has ended. The position is
where the line after the last one that was handed out begins. A file was truncated if it became shorter, or
if the bytes before the position, or before the end of what was read, are others than those that were read:
so what is begun is never put together with what is written after a truncation. Everything is asked of the
open descriptor, so a file keeps being read under whatever name it has by now.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from pathlib import Path

from signoff.sources.events import Piece
from signoff.sources.files.reader import BYTE_ORDER_MARK
from signoff.sources.lines import LineSplitter

CHUNK_BYTES = 1024**2
HEAD_BYTES = 1024
"""How much of its beginning tells a file from another one with the same inode."""
TAIL_BYTES = 256
"""How much before the position, and before the end of what was read, tells whether a file was rewritten."""


class Tail:
    """Reads on from a position."""

    def __init__(self, path: Path, unit: int, max_line_bytes: int, position: int = 0) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        status = os.fstat(self._descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(self._descriptor)
            raise FileNotFoundError(errno.ENOENT, "no regular file", str(path))
        self.unit, self.inode = unit, status.st_ino
        self.key = status.st_dev, status.st_ino
        """No other file that is there has this; inodes alone are those of one file system."""
        self.position = self._offset = position
        self._max_line_bytes = max_line_bytes
        self._lines = LineSplitter(max_line_bytes, position)
        self._seen: tuple[int, int] = (-1, -1)
        self._truncated = False
        self._tail = self._recent = self._before(position)
        """What was read: before the position, and before the offset."""
        self.ended = False
        """Its last line was handed out, with or without a newline."""

    def read(self, max_lines: int) -> Piece | None:
        """The next whole lines; None if there are none at the moment."""
        while True:
            lines = self._lines.take(max_lines)
            if lines is not None and len(lines):
                return self._given(lines)
            if lines is None and not self._read():  # an empty piece: those lines had nothing in them
                return None

    def finish(self, max_lines: int) -> Piece | None:
        """The file has ended: the lines that were read of it, and what is left without a newline as its last
        one; None when all of them were handed out."""
        while True:
            lines = self._lines.take(max_lines)
            if lines is not None and len(lines):
                return self._given(lines)
            if lines is None:
                if self.ended:
                    return None
                self.ended = True
                self._lines.finish()

    def truncated(self) -> bool:
        """Whether what was read is no longer there. Cheap while the file does not change."""
        status = os.fstat(self._descriptor)
        if self._seen != (status.st_size, status.st_mtime_ns):
            self._seen = status.st_size, status.st_mtime_ns
            self._truncated |= status.st_size < self._offset or not self._is_as_it_was()
        return self._truncated

    def go_on(self) -> None:
        """Somebody writes to it after its end."""
        self.ended, self._offset, self._recent = False, self.position, self._tail
        self._lines = LineSplitter(self._max_line_bytes, self.position)

    def unread(self) -> bool:
        return os.fstat(self._descriptor).st_size > self._offset

    def head(self, size: int = HEAD_BYTES) -> tuple[str, int]:
        """Digest of the first bytes, and of how many."""
        data = os.pread(self._descriptor, size, 0)
        return hashlib.sha256(data).hexdigest(), len(data)

    def tail(self) -> str:
        """Digest of the last bytes before the position."""
        return hashlib.sha256(self._tail).hexdigest()

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _read(self) -> bool:
        """The next chunk, once all lines of the one before are taken; False if there is none."""
        self._recent = self._recent[-TAIL_BYTES:]
        data = os.pread(self._descriptor, CHUNK_BYTES, self._offset)
        if not data or self.truncated():  # after it was read: else it may be of what comes next
            return False
        self._recent += data
        if self._offset == 0 and data.startswith(BYTE_ORDER_MARK):
            # An empty line of the same length, so that positions are those of the file.
            data = b"\n" * len(BYTE_ORDER_MARK) + data[len(BYTE_ORDER_MARK) :]
        self._offset += len(data)
        self._lines.feed(data)
        return True

    def _given(self, lines: Piece) -> Piece:
        self.position = int(lines.positions[-1])
        end = len(self._recent) - (self._offset - self.position)  # it is in the last chunk that was read
        self._tail = self._recent[max(0, end - TAIL_BYTES) : end]
        return lines

    def _is_as_it_was(self) -> bool:
        read = self._recent[-TAIL_BYTES:]
        return self._before(self.position) == self._tail and self._before(self._offset) == read

    def _before(self, position: int) -> bytes:
        begin = max(0, position - TAIL_BYTES)
        return os.pread(self._descriptor, position - begin, begin)
