"""What a task of the `files` sink writes: files below `.parts`, of one directory each, fsynced and invisible.

What it keeps: `add` takes all rows or, raising OSError, none: lines that were written are cut off again. A
part's file is never longer than a target allows, as far as whole rows can do that, so that `commit` only has
to put whole ones together.
"""

from __future__ import annotations

import gzip
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq

from signoff.durable import sync_directory, sync_file
from signoff.errors import PermanentError
from signoff.json_text import buffer_of, json_lines
from signoff.sinks.csv_text import CsvShape, csv_header, csv_lines
from signoff.sinks.refusal import brief

Compression = Literal["none", "gzip", "zstd", "snappy"]

ROW_GROUP_BYTES = 128 * 1024**2
"""Arrow bytes a Parquet part gathers before they are written as one row group."""
_SLICE_ROWS = 50_000
"""Rows made into text at a time: keeps the text of a large batch out of memory."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How large a file may become."""

    rows: int | None = None
    bytes: int | None = None

    def exceeded(self, rows: int, size: int) -> bool:
        return bool((self.rows and rows > self.rows) or (self.bytes and size > self.bytes))


@dataclass(slots=True)
class PartFile:
    """One file of a part."""

    name: str
    directory: str
    """Where its rows belong, below the sink's directory."""
    rows: int = 0
    size: int = 0
    head: int = 0
    """How many bytes at its beginning are the header, which only the first of several keeps."""

    def entry(self) -> list[object]:
        return [self.name, self.directory, self.rows, self.size, self.head]


class PartFiles(ABC):
    """The files of one part."""

    def __init__(self, stem: Path, suffix: str, compression: Compression, limits: Limits) -> None:
        self._stem, self._suffix, self._compression, self._limits = stem, suffix, compression, limits
        self.files: list[PartFile] = []
        self._made = 0

    @abstractmethod
    def add(self, divided: Sequence[tuple[str, pa.RecordBatch]]) -> None:
        """Take rows, by directory: all of them or none."""

    @abstractmethod
    def finish(self) -> None:
        """Make all rows durable. Repeatable."""

    def remove(self) -> None:
        for file in self.files:
            try:
                self._path(file).unlink(missing_ok=True)
            except OSError:
                return  # the next commit of this batch removes it

    def _path(self, file: PartFile) -> Path:
        return self._stem.with_name(file.name)

    def _new(self, directory: str) -> PartFile:
        self._stem.parent.mkdir(parents=True, exist_ok=True)
        self._made += 1
        return PartFile(f"{self._stem.name}-{self._made - 1:05d}{self._suffix}", directory)


class LineFiles(PartFiles):
    """JSONL and CSV. Compressed, each write is a member of its own, which readers concatenate; a member that
    failed half way can be cut off again, a stream could not."""

    def __init__(
        self, stem: Path, suffix: str, compression: Compression, limits: Limits, csv: CsvShape | None
    ) -> None:
        super().__init__(stem, suffix, compression, limits)
        self._csv = csv
        self._last: dict[str, PartFile] = {}
        """Of each directory, the file that is not full."""

    def add(self, divided: Sequence[tuple[str, pa.RecordBatch]]) -> None:
        before = [(file, file.rows, file.size) for file in self.files]
        last = dict(self._last)
        try:
            for directory, rows in divided:
                for piece in self._slices(directory, rows):
                    self._append(directory, piece)
        except BaseException:
            self._undo(before, last)
            raise

    def _slices(self, directory: str, rows: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Rows that go into one file each."""
        most = _SLICE_ROWS
        if self._limits.bytes and rows.num_rows:
            most = max(1, min(most, self._limits.bytes * rows.num_rows // max(1, 8 * rows.nbytes)))
        pieces, start = [], 0
        room = self._limits.rows
        if room is not None and (file := self._last.get(directory)) is not None:
            room -= file.rows
        while start < rows.num_rows:
            room = self._limits.rows if room is not None and room <= 0 else room
            count = min(most, rows.num_rows - start, room if room is not None else most)
            pieces.append(rows.slice(start, count))
            start += count
            room = None if room is None else room - count
        return pieces

    def _append(self, directory: str, rows: pa.RecordBatch) -> None:
        text = json_lines(rows) if self._csv is None else csv_lines(rows, self._csv)
        data = _compress(buffer_of(text), self._compression)
        file = self._last.get(directory)
        if file is not None and self._limits.exceeded(file.rows + rows.num_rows, file.size + len(data)):
            file = None
        if file is None:
            file = self._last[directory] = self._new(directory)
            self.files.append(file)
        descriptor = os.open(self._path(file), os.O_WRONLY | os.O_CREAT, 0o666)
        try:
            os.lseek(descriptor, file.size, os.SEEK_SET)
            if file.size == 0 and self._csv is not None and self._csv.header:
                header = pa.py_buffer(csv_header(rows.schema.names, self._csv))
                file.head = file.size = write_all(descriptor, _compress(header, self._compression))
            file.size += write_all(descriptor, data)
            file.rows += rows.num_rows
        finally:
            os.close(descriptor)

    def _undo(self, before: Sequence[tuple[PartFile, int, int]], last: dict[str, PartFile]) -> None:
        kept = {file.name for file, _, _ in before}
        for file in self.files:
            if file.name not in kept:
                self._path(file).unlink(missing_ok=True)
        for file, rows, size in before:
            file.rows, file.size = rows, size
            os.truncate(self._path(file), size)
        self.files, self._last = [file for file, _, _ in before], last

    def finish(self) -> None:
        for file in self.files:
            sync_file(self._path(file))
        if self.files:
            sync_directory(self._stem.parent)


class ParquetFiles(PartFiles):
    """Gathers rows, and writes each gathering as a file of its own: one that fails half way can be written
    again, which a file with several row groups could not."""

    def __init__(self, stem: Path, suffix: str, compression: Compression, limits: Limits) -> None:
        super().__init__(stem, suffix, compression, limits)
        self._gathered: dict[str, list[pa.RecordBatch]] = {}
        self._ratio = 1.5
        """How large a file is for each byte of Arrow, as the last one was."""

    def add(self, divided: Sequence[tuple[str, pa.RecordBatch]]) -> None:
        if divided and not self.files and not self._gathered:
            _refuse_unknown_types(divided[0][1].schema)
        new = sum(rows.nbytes for _, rows in divided)
        if self._gathered and self._size() + new > ROW_GROUP_BYTES:
            self._flush(list(self._gathered))
        if self._limits.bytes is not None:
            # What is compressed is smaller: `commit` puts such files together up to the limit.
            most = self._limits.bytes / self._ratio
            self._flush([one for one, _ in divided if self._size(one) >= most])
        for directory, rows in divided:
            self._gathered.setdefault(directory, []).append(rows)

    def _size(self, directory: str | None = None) -> int:
        chosen = self._gathered.values() if directory is None else [self._gathered.get(directory, [])]
        return sum(rows.nbytes for batches in chosen for rows in batches)

    def finish(self) -> None:
        self._flush(list(self._gathered))
        if self.files:
            sync_directory(self._stem.parent)

    def _flush(self, directories: Sequence[str]) -> None:
        for directory in directories:
            while batches := self._gathered.pop(directory, []):
                table = pa.Table.from_batches(batches)
                most = self._most(table)
                try:
                    self._write(directory, table.slice(0, most))
                except BaseException:
                    self._gathered[directory] = batches
                    raise
                if most < table.num_rows:
                    self._gathered[directory] = table.slice(most).to_batches()

    def _most(self, table: pa.Table) -> int:
        """How many rows go into the next file."""
        most: int = table.num_rows
        if self._limits.bytes is not None:
            most = min(most, max(1, int(self._limits.bytes * most / max(1.0, table.nbytes * self._ratio))))
        return min(most, self._limits.rows or most)

    def _write(self, directory: str, table: pa.Table) -> None:
        file = self._new(directory)
        path = self._path(file)
        try:
            pq.write_table(table, path, compression=self._compression, row_group_size=max(table.num_rows, 1))
            sync_file(path)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        file.rows, file.size = table.num_rows, path.stat().st_size
        self._ratio = max(0.01, 1.1 * file.size / max(1, table.nbytes))
        self.files.append(file)

    def remove(self) -> None:
        self._gathered = {}
        super().remove()


def write_all(descriptor: int, data: memoryview) -> int:
    rest = data
    while len(rest):
        rest = rest[os.write(descriptor, rest) :]
    return len(data)


def _refuse_unknown_types(schema: pa.Schema) -> None:
    try:
        pq.write_table(schema.empty_table(), pa.BufferOutputStream())
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        raise PermanentError(f"Parquet cannot hold these columns: {brief(error)}") from error


def _compress(text: pa.Buffer, compression: Compression) -> memoryview:
    if compression == "gzip":
        return memoryview(gzip.compress(text, compresslevel=5, mtime=0))
    if compression == "zstd":
        return memoryview(pa.Codec("zstd").compress(text, asbytes=True))
    return memoryview(text)
