"""What reads one file for the files source, from a position on.

What every reader keeps: events come in the file's order; each has a position from which a new reader
goes on with the next one; a step reads a bounded amount. What is wrong with one line or row is an
event with an error. What is wrong with the whole file (not gzip, not Parquet, cut off) is one last
event with an error, and `damaged` says so.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import BinaryIO, Literal, cast

from signoff.sources.events import Piece
from signoff.sources.files.compressed import Unpacked, is_packed
from signoff.sources.files.content import ContentFile

Format = Literal["jsonl", "text", "csv", "parquet"]

CHUNK_BYTES = 4 * 1024**2
PACKED_BYTES = 256 * 1024
"""Read ahead of a compressed file: little, or nobody could tell how much of it was read."""
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
    quote: str | None = '"'
    escape: str | None = None


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

    def bytes_read(self, content: ContentFile, position: int) -> int:
        """About how many bytes on disk, from the file's first on, hold the events up to this position."""
        if not is_packed(content.path):
            return position
        return content.tell() * position // max(self.position, position, 1)  # of what is unpacked so far


def open_stream(content: ContentFile, *, buffering: int = CHUNK_BYTES) -> BinaryIO:
    """The file's bytes, decompressed if its name says that they are compressed."""
    packed = is_packed(content.path)
    stream = io.BufferedReader(_Stream(content), min(buffering, PACKED_BYTES) if packed else buffering)
    if packed:
        unpacked = Unpacked(cast(BinaryIO, stream), content.path.suffix)
        return cast(BinaryIO, io.BufferedReader(unpacked, buffering))
    return cast(BinaryIO, stream)


class _Stream(io.RawIOBase):
    """The content as the standard library wants a file; closing it leaves the content open."""

    def __init__(self, content: ContentFile) -> None:
        self._content = content

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = self._content.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def tell(self) -> int:
        return self._content.tell()

    def seek(self, offset: int, whence: int = 0) -> int:
        if whence != 0:
            raise io.UnsupportedOperation("only from the beginning")
        self._content.seek(offset)
        return offset
