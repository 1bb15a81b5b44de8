"""The formats of the files source: JSONL and text here, CSV in `csv_rows`, Parquet in `parquet_rows`."""

from __future__ import annotations

from typing import BinaryIO

from signoff.sources.events import Piece, piece
from signoff.sources.files.compressed import Damaged, is_packed
from signoff.sources.files.content import ContentFile
from signoff.sources.files.csv_rows import CsvReader
from signoff.sources.files.parquet_rows import ParquetReader
from signoff.sources.files.reader import (
    BYTE_ORDER_MARK,
    CHUNK_BYTES,
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
        self._file: BinaryIO | ContentFile = open_stream(content) if is_packed(content.path) else content
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
        except Damaged as error:
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
