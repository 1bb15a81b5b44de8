"""Which events of a NATS source were refused, so that their messages, delivered again, are new events.

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


class Refusals:
    def __init__(self, path: Path, oldest: int) -> None:
        """`oldest`: events below are not in the log any more, and need no note."""
        content = path.read_bytes() if path.exists() else b""
        whole = content[: len(content) // _NUMBER.size * _NUMBER.size]
        kept = [number for (number,) in _NUMBER.iter_unpack(whole) if number >= oldest]
        self.sequences = BitMap64(kept)
        write_whole(path, b"".join(map(_NUMBER.pack, kept)))
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND)
        self._size = len(kept) * _NUMBER.size

    def note(self, sequences: Iterable[int]) -> None:
        """Raises OSError, and notes nothing, when there is no room."""
        sequences = list(sequences)
        try:
            content = memoryview(b"".join(map(_NUMBER.pack, sequences)))
            while content:
                content = content[os.write(self._file, content) :]
            os.fdatasync(self._file)
        except OSError:
            os.ftruncate(self._file, self._size)
            raise
        self._size += len(sequences) * _NUMBER.size
        self.sequences |= BitMap64(sequences)

    def close(self) -> None:
        os.close(self._file)
