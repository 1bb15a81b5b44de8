"""Compressed files: gzip, bzip2 and Zstandard, by their suffix, as a stream that only goes forwards.

What it keeps: memory is bounded, whatever the file unpacks to. Bytes that make no sense are `Damaged`, an
error of the file; an OSError is one of the disk, after which the same is tried again. Several streams one
after the other in a file, as parallel compressors and log rotation write them, are one.
"""

from __future__ import annotations

import bz2
import gzip
import io
import zlib
from pathlib import PurePath
from typing import Any, BinaryIO

import pyarrow as pa

SKIPPED_BYTES = 1024**2
CHUNK_BYTES = 64 * 1024
PACKED = (".gz", ".bz2", ".zst", ".zstd")


class Damaged(Exception):
    """The rest of the file makes no sense; the text says why."""


def is_packed(name: str | PurePath) -> bool:
    """Whether the suffix says that the file is compressed."""
    return PurePath(name).suffix.lower() in PACKED


def without_packing(name: PurePath) -> PurePath:
    """The name of what is in the file."""
    return name.with_suffix("") if is_packed(name) else name


class Unpacked(io.RawIOBase):
    """What is in a compressed file."""

    def __init__(self, stream: BinaryIO, suffix: str) -> None:
        self._inner = _opened(stream, suffix.lower())
        self._offset = 0
        self._damaged: str | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._damaged is not None:  # a decompressor that has failed may go on with bytes that are nobody's
            raise Damaged(self._damaged)
        try:
            data = self._inner.read(len(buffer))
        except (OSError, EOFError, zlib.error) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            self._damaged = str(error)
            raise Damaged(self._damaged) from error
        buffer[: len(data)] = data
        self._offset += len(data)
        return len(data)

    def tell(self) -> int:
        return self._offset

    def seek(self, offset: int, whence: int = 0) -> int:
        if whence != 0 or offset < self._offset:
            raise io.UnsupportedOperation("only forwards")
        while self._offset < offset:
            skipped = bytearray(min(SKIPPED_BYTES, offset - self._offset))
            if not self.readinto(skipped):
                break
        return self._offset

    def close(self) -> None:
        if not self.closed:
            self._inner.close()
        super().close()


class _Bzip2:
    """Streams one after the other. The standard library takes whatever follows the first one and is no
    stream for the end of the file: lines behind it, or a stream with a damaged header, would be gone."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._unpacker = bz2.BZ2Decompressor()

    def read(self, size: int) -> bytes:
        data = b""
        while not data:
            if self._unpacker.eof:
                packed = self._unpacker.unused_data or self._stream.read(CHUNK_BYTES)
                if not packed:
                    break
                self._unpacker = bz2.BZ2Decompressor()
            else:
                packed = self._stream.read(CHUNK_BYTES) if self._unpacker.needs_input else b""
                if not packed and self._unpacker.needs_input:
                    raise EOFError("Compressed file ended before the end-of-stream marker was reached")
            data = self._unpacker.decompress(packed, size)
        return data

    def close(self) -> None:
        self._stream.close()


def _opened(stream: BinaryIO, suffix: str) -> Any:
    if suffix == ".gz":
        return gzip.GzipFile(fileobj=stream, mode="rb")
    if suffix == ".bz2":
        return _Bzip2(stream)
    return pa.CompressedInputStream(pa.PythonFile(stream, "r"), "zstd")
