"""The formats of the files source: JSONL, text and Parquet here, CSV in `file_csv`."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

import orjson
import pyarrow as pa

from signoff.sources.events import KEPT_BYTES, Piece, piece, too_large
from signoff.sources.file_content import ContentFile
from signoff.sources.file_csv import CsvReader
from signoff.sources.file_reader import (
    BYTE_ORDER_MARK,
    CHUNK_BYTES,
    ROWS,
    UNREADABLE,
    Reader,
    Shape,
    open_stream,
)
from signoff.sources.lines import LineSplitter


def open_reader(content: ContentFile, shape: Shape, position: int) -> Reader:
    """A reader that goes on after `position`."""
    if shape.format == "parquet":
        return ParquetReader(content, shape, position)
    return (CsvReader if shape.format == "csv" else LineReader)(content, shape, position)


class LineReader(Reader):
    """JSONL and text: one event a line, as it is."""

    def __init__(self, content: ContentFile, shape: Shape, position: int) -> None:
        packed = content.path.suffix == ".gz"
        self._file: BinaryIO | ContentFile = open_stream(content) if packed else content
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
            return piece([self._lines.rest()], [self.position], {0: self.damaged})
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
        if not isinstance(self._file, ContentFile):
            self._file.close()


class ParquetReader(Reader):
    """Parquet: one event a row, as a JSON object; the position is the number of rows read."""

    def __init__(self, content: ContentFile, shape: Shape, position: int) -> None:
        self._max_event_bytes = shape.max_event_bytes
        self._file = open(content.duplicate(), "rb")  # noqa: SIM115  (closed by `close`)
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
    return max(1, min(ROWS, CHUNK_BYTES // max(1, row)))


def _other(value: object) -> object:
    """JSON of what orjson does not know."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)
