"""How the files source reads one file: lines, CSV rows or Parquet rows, from a position on.

What every reader keeps: events come in the file's order; each has a position from which a new reader
goes on with the next one; a step reads a bounded amount. What is wrong with one line or row is an
event with an error. What is wrong with the whole file (not gzip, not Parquet, cut off) is one last
event with an error, and `damaged` says so.
"""

from __future__ import annotations

import base64
import csv
import gzip
import zlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

import orjson
import pyarrow as pa

from signoff.sources.events import KEPT_BYTES, Piece, piece, too_large
from signoff.sources.lines import LineSplitter

Format = Literal["jsonl", "text", "csv", "parquet"]

CHUNK_BYTES = 4 * 1024**2
CSV_ROWS, PARQUET_ROWS = 5_000, 5_000
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


def open_reader(path: Path, shape: Shape, position: int) -> Reader:
    """A reader that goes on after `position`. Raises OSError when the file cannot be opened."""
    if shape.format == "parquet":
        return ParquetReader(path, shape, position)
    return (CsvReader if shape.format == "csv" else LineReader)(path, shape, position)


def appendable(path: Path, shape: Shape) -> bool:
    """Whether more bytes at the end of such a file are simply more events."""
    return shape.format != "parquet" and path.suffix != ".gz"


class LineReader(Reader):
    """JSONL and text: one event a line, as it is."""

    def __init__(self, path: Path, shape: Shape, position: int) -> None:
        self._file = _open(path, buffering=0)
        self._ended = False
        self.position = position
        self._lines = LineSplitter(shape.max_event_bytes, position)
        self._skip = position

    def read(self, max_events: int) -> Piece | None:
        lines = self._lines.take(max_events)
        if lines is not None:
            return lines
        if self._ended:
            return None
        try:
            data = self._chunk()
        except UNREADABLE as error:
            self.damaged, self._ended = f"file is damaged: {error}", True
            return piece([b""], [self.position], {0: self.damaged})
        self.position += len(data)
        if data:
            self._lines.feed(data)
        else:
            self._ended = True
            self._lines.finish()
        return self._lines.take(max_events) or piece([], [], {})

    def _chunk(self) -> bytes:
        if self._skip:
            self._file.seek(self._skip)
            self._skip = 0
        data = self._file.read(CHUNK_BYTES)
        if self.position == 0 and data.startswith(BYTE_ORDER_MARK):
            # Replaced by an empty line of the same place, so that offsets stay those of the file.
            return b"\n" * len(BYTE_ORDER_MARK) + data[len(BYTE_ORDER_MARK) :]
        return data

    def close(self) -> None:
        self._file.close()


class CsvReader(Reader):
    """CSV: one event a row, as a JSON object of strings by the names in the header.

    A row that is wrong is an event with an error and its raw text. After a quote that is never
    closed, reading goes on with the line after the one it is in: one line is bad, not the rest.
    """

    def __init__(self, path: Path, shape: Shape, position: int) -> None:
        self._file, self._shape = _open(path, buffering=CHUNK_BYTES), shape
        self.position = 0
        self._resume = position
        self._taken: list[bytes] = []
        """Raw lines of the row that is being read."""
        self._taken_bytes = 0
        self._again: deque[bytes] = deque()
        """Raw lines to be read once more, after a quote that was never closed."""
        self._rows = self._parser()
        self._names: list[str] | None = None
        self._ended = False

    def read(self, max_events: int) -> Piece | None:
        payloads: list[bytes] = []
        positions: list[int] = []
        errors: dict[int, str] = {}
        try:
            if self.position == 0:
                self._begin()
            size = 0
            while not self._ended and len(payloads) < min(max_events, CSV_ROWS) and size < CHUNK_BYTES:
                payload, error = self._row()
                size += len(payload)
                if payload:
                    if error:
                        errors[len(payloads)] = error
                    payloads.append(payload)
                    positions.append(self.position)
        except UNREADABLE as failure:
            self.damaged, self._ended = f"file is damaged: {failure}", True
            errors[len(payloads)] = self.damaged
            payloads.append(b"")
            positions.append(self.position)
        return piece(payloads, positions, errors) if payloads else None

    def _begin(self) -> None:
        """Read the names, and go to where reading stopped."""
        if self._file.peek(3)[:3] == BYTE_ORDER_MARK:  # type: ignore[attr-defined]
            self.position = len(self._file.read(3))
        if self._shape.header:
            names, error = self._parsed()
            self._names = names
            if error:
                raise Damaged(f"the header is not CSV: {error}")
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise Damaged(f"the header names {twice[0]!r} twice")
        if self._resume > self.position:
            self._file.seek(self._resume)
            self.position = self._resume
            self._again.clear()
            self._rows = self._parser()

    def _row(self) -> tuple[bytes, str]:
        """The next row as payload and error; an empty payload for an empty line and at the end."""
        fields, error = self._parsed()
        if error:
            return self._raw[:KEPT_BYTES], error
        if not fields:
            return b"", ""
        names = self._names or [f"_c{place}" for place in range(len(fields))]
        if len(fields) != len(names):
            return self._raw[:KEPT_BYTES], f"row has {len(fields)} fields, the header has {len(names)}"
        try:
            return orjson.dumps(dict(zip(names, fields, strict=True))), ""
        except orjson.JSONEncodeError:
            return self._raw[:KEPT_BYTES], "row is not valid UTF-8"

    def _parsed(self) -> tuple[list[str], str]:
        """The fields of the next row, or the reason why its first line is not one."""
        self._taken, self._taken_bytes = [], 0
        error = ""
        fields: list[str] = []
        try:
            fields = next(self._rows)
        except StopIteration:
            self._ended = True
        except csv.Error as failure:
            error = f"row is not CSV: {failure}"
            self._again.extendleft(reversed(self._taken[1:]))
            self._taken = self._taken[:1]
            self._rows = self._parser()
        self._raw = b"".join(self._taken)
        self.position += len(self._raw)
        return fields, error

    def _parser(self) -> Iterator[list[str]]:
        csv.field_size_limit(max(csv.field_size_limit(), self._shape.max_event_bytes))
        return csv.reader(self._lines(), delimiter=self._shape.delimiter, strict=True)

    def _lines(self) -> Iterator[str]:
        limit = self._shape.max_event_bytes
        while True:
            raw = self._again.popleft() if self._again else self._file.readline(limit + 2)
            if not raw:
                return
            self._taken.append(raw)
            self._taken_bytes += len(raw)
            if self._taken_bytes > limit + 1:
                raise csv.Error(self._too_long(limit))
            yield raw.decode("utf-8", "surrogateescape")

    def _too_long(self, limit: int) -> str:
        """Go over the rest of a line that is too long, without holding it."""
        line = self._taken[-1]
        if len(self._taken) > 1 or line.endswith(b"\n"):
            return too_large(self._taken_bytes, limit, "row")
        size = len(line)
        while rest := self._file.readline(CHUNK_BYTES):
            size += len(rest)
            if rest.endswith(b"\n"):
                break
        self.position += size - len(line)
        return too_large(size, limit, "row")

    def close(self) -> None:
        self._file.close()


class ParquetReader(Reader):
    """Parquet: one event a row, as a JSON object; the position is the number of rows read."""

    def __init__(self, path: Path, shape: Shape, position: int) -> None:
        self._max_event_bytes = shape.max_event_bytes
        self._file = path.open("rb")
        self.position = position
        self._batches: Iterator[pa.RecordBatch] | None = None
        self._left: pa.RecordBatch | None = None
        self._ended = False

    def read(self, max_events: int) -> Piece | None:
        if self._ended:
            return None
        try:
            rows = self._step(max_events)
        except (pa.ArrowException, OSError, ValueError) as error:
            self.damaged, self._ended = f"file is not readable as Parquet: {error}", True
            return piece([b""], [self.position + 1], {0: self.damaged})
        if rows is None:
            return None
        start, self.position = self.position, self.position + len(rows)
        payloads = [orjson.dumps(row, _other, orjson.OPT_UTC_Z | orjson.OPT_NON_STR_KEYS) for row in rows]
        errors = {}
        for index, payload in enumerate(payloads):
            if len(payload) > self._max_event_bytes:
                errors[index] = too_large(len(payload), self._max_event_bytes, "row")
                payloads[index] = payload[: min(KEPT_BYTES, self._max_event_bytes)]
        return piece(payloads, range(start + 1, self.position + 1), errors)

    def _step(self, max_events: int) -> list[dict[str, object]] | None:
        if self._batches is None:
            self._batches = self._open()
        batch = self._left if self._left else next(self._batches, None)
        if batch is None:
            return None
        self._left = batch.slice(max_events)
        return cast("list[dict[str, object]]", batch.slice(0, max_events).to_pylist())

    def _open(self) -> Iterator[pa.RecordBatch]:
        """Whole row groups before the position are not read; within the first one rows are skipped."""
        import pyarrow.parquet as pq  # here, because few pipelines need it and it is slow to load

        file = pq.ParquetFile(self._file, pre_buffer=False)
        skip, groups = self.position, list(range(file.num_row_groups))
        while groups and skip >= file.metadata.row_group(groups[0]).num_rows:
            skip -= file.metadata.row_group(groups.pop(0)).num_rows
        for batch in file.iter_batches(_rows_of_a_step(file.metadata), row_groups=groups):
            if skip < len(batch):
                yield batch.slice(skip)
            skip = max(0, skip - len(batch))

    def close(self) -> None:
        self._file.close()


def _rows_of_a_step(metadata: Any) -> int:
    size = sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
    row = int(size // max(1, metadata.num_rows))
    return max(1, min(PARQUET_ROWS, CHUNK_BYTES // max(1, row)))


def checksum(path: Path, start: int, size: int) -> int:
    """CRC of a stretch of the file as it lies on disk."""
    with closing(path.open("rb")) as file:
        file.seek(start)
        return int(zlib.crc32(file.read(size)))


def _open(path: Path, buffering: int) -> BinaryIO:
    if path.suffix == ".gz":
        return cast(BinaryIO, gzip.open(path, "rb"))
    return path.open("rb", buffering=buffering)


def _other(value: object) -> object:
    """JSON of what orjson does not know."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)
