"""The head file: the durable end of a log in 24 bytes, for readers that ask every few milliseconds.

Invariants:

- The head never lies ahead of what is durable: it is written after the fsync of the events.
- It may lag behind after a loss of power, because it is not fsynced itself: one fsync per group
  commit is enough, and the writer finds the true end when it opens the log.
- It is written in place. A reader that meets it half written sees a wrong checksum and asks again.
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

_HEAD = struct.Struct("<8sQI")
_MAGIC = b"SIGNOFFH"
_TRIES = 5


class HeadFile:
    """The writer's side."""

    def __init__(self, directory: Path) -> None:
        self._descriptor = os.open(directory / "head", os.O_RDWR | os.O_CREAT, 0o600)

    def publish(self, sequence: int) -> None:
        content = struct.pack("<8sQ", _MAGIC, sequence)
        os.pwrite(self._descriptor, content + zlib.crc32(content).to_bytes(4, "little"), 0)

    def close(self) -> None:
        os.close(self._descriptor)


def read_head(directory: Path) -> int | None:
    """The published head, or None where there is none or it is damaged."""
    try:
        descriptor = os.open(directory / "head", os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        for _ in range(_TRIES):
            content = os.pread(descriptor, _HEAD.size, 0)
            if len(content) == _HEAD.size:
                magic, sequence, checksum = _HEAD.unpack(content)
                if magic == _MAGIC and zlib.crc32(content[:-4]) == checksum:
                    return int(sequence)
        return None
    finally:
        os.close(descriptor)
