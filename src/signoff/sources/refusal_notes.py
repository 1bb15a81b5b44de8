"""Which events of a source were refused, so that their messages, delivered again, are new events.

A file of numbers, eight bytes each: on disk when `note` returns. A torn number at its end was not told to
the server either.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from pathlib import Path

from pyroaring import BitMap64

from signoff.durable import write_whole

_NUMBER = struct.Struct("<q")
_MOST_BYTES = 1024**2
"""Beyond it, notes on events that are no longer in the log are removed."""


class Refusals:
    def __init__(self, path: Path, oldest: int) -> None:
        """`oldest`: events below are not in the log any more, and need no note."""
        self._path, self._most = path, _MOST_BYTES
        content = path.read_bytes() if path.exists() else b""
        whole = content[: len(content) // _NUMBER.size * _NUMBER.size]
        self.sequences = BitMap64(number for (number,) in _NUMBER.iter_unpack(whole))
        self._file = -1
        self._tidy(oldest)

    def note(self, sequences: Iterable[int], oldest: int) -> None:
        """Raises OSError, and notes nothing, when there is no room."""
        sequences = BitMap64(sequences)
        if self._size > self._most:
            self._tidy(oldest)
        try:
            content = memoryview(b"".join(map(_NUMBER.pack, sequences)))
            while content:
                content = content[os.write(self._file, content) :]
            os.fdatasync(self._file)
        except OSError:
            os.ftruncate(self._file, self._size)
            raise
        self._size += len(sequences) * _NUMBER.size
        self.sequences |= sequences

    def close(self) -> None:
        os.close(self._file)

    def _tidy(self, oldest: int) -> None:
        self.sequences.remove_range(0, oldest)
        write_whole(self._path, b"".join(map(_NUMBER.pack, self.sequences)))
        if self._file >= 0:
            os.close(self._file)
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        self._size = len(self.sequences) * _NUMBER.size
        self._most = max(_MOST_BYTES, 2 * self._size)
