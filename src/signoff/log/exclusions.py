"""Events withheld from Spark: those that made the plan itself fail (poison).

The set is one small file, replaced as a whole and durable when `exclude` returns. Events that are
no longer in the log are forgotten on the way, so the file does not grow for ever.
"""

from __future__ import annotations

import fcntl
import os
import zlib
from collections.abc import Iterable
from pathlib import Path

from pyroaring import BitMap64

from signoff.durable import write_whole
from signoff.errors import LogCorrupt
from signoff.log.segment import list_segments

_MAGIC = b"SIGNOFFX"


def exclude(directory: Path, sequences: Iterable[int]) -> None:
    """Withhold these events from the Spark source, besides those withheld already."""
    directory = Path(directory)
    lock = os.open(directory / "excluded.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        united = excluded(directory) | BitMap64(sequences)
        if segments := list_segments(directory):
            united.remove_range(0, segments[0])
        content = united.serialize()
        write_whole(directory / "excluded", _MAGIC + zlib.crc32(content).to_bytes(4, "little") + content)
    finally:
        os.close(lock)


def excluded(directory: Path) -> BitMap64:
    """The events withheld from the Spark source."""
    path = Path(directory) / "excluded"
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return BitMap64()
    content = data[12:]
    if data[:8] != _MAGIC or zlib.crc32(content) != int.from_bytes(data[8:12], "little"):
        raise LogCorrupt(
            f"[log-corrupt] {path}: the list of withheld events does not match its checksum; remove the "
            "file to have them tried, and isolated, again"
        )
    return BitMap64.deserialize(content)
