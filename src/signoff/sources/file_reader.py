"""What reads one file for the files source, from a position on.

What every reader keeps: events come in the file's order; each has a position from which a new reader
goes on with the next one; a step reads a bounded amount. What is wrong with one line or row is an
event with an error. What is wrong with the whole file (not gzip, not Parquet, cut off) is one last
event with an error, and `damaged` says so.
"""

from __future__ import annotations

import gzip
import zlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, cast

from signoff.sources.events import Piece

Format = Literal["jsonl", "text", "csv", "parquet"]

CHUNK_BYTES = 4 * 1024**2
ROWS = 5_000
"""Most rows of one step: they are Python objects for a moment."""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Shape:
    """What of the source's config a reader must know."""

    format: Format
    max_event_bytes: int
    delimiter: str = ","
    header: bool = True


class Damaged(Exception):
    """The rest of the file makes no sense; the text says why."""


UNREADABLE = (Damaged, EOFError, gzip.BadGzipFile, zlib.error)


class Reader(ABC):
    """One open file."""

    damaged = ""
    """Why the file could not be read to its end."""
    position = 0
    """Where reading stands: bytes after decompression, or rows."""

    @abstractmethod
    def read(self, max_events: int) -> Piece | None:
        """The next events (perhaps none in this step), or None at the end of the file."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the file."""


def open_file(path: Path, buffering: int) -> BinaryIO:
    """The file's bytes, decompressed if its name says that they are compressed."""
    if path.suffix == ".gz":
        return cast(BinaryIO, gzip.open(path, "rb"))
    return path.open("rb", buffering=buffering)
