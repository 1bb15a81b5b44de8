"""Sink `files`: one file per batch in a directory, visible all at once and exactly once.

    <path>/.parts/<batch>/<partition>-<attempt>-<token>-<n>.<ext>   written and fsynced by a task; invisible
    <path>/<batch>.<ext>                                            renamed into place by `commit`

Invariants: a file in `<path>` is complete and never changes its rows; a replayed batch has the same
name and replaces it. A failed write leaves no half line: the part is cut back to the last whole one.
What a crash leaves below `.parts` goes with the next commit of the same batch. Until then a part never
changes, also not by another run: a receipt may name it.

The directory belongs to one sink of one pipeline: names tell batches apart, not sinks. On a
cluster it must be on a file system all executors and the driver share.
"""

from __future__ import annotations

import errno
import gzip
import json
import os
import shutil
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from secrets import token_hex
from typing import ClassVar, Literal, Self

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import model_validator

from signoff.durable import make_directory, sync_directory, sync_file
from signoff.errors import PermanentError, TransientError
from signoff.pipeline.model import SinkConfig
from signoff.sinks.contract import BatchRef, Part, Refusal, Sink, Writer
from signoff.sinks.jsontext import buffer_of, json_lines
from signoff.sinks.refusal import brief, fit

Format = Literal["jsonl", "parquet"]
Compression = Literal["none", "gzip", "zstd", "snappy"]

PARTS = ".parts"
ROW_GROUP_BYTES = 128 * 1024**2
"""Arrow bytes a Parquet part gathers before they are written as one row group."""
_SLICE_ROWS = 50_000
"""Rows made into text at a time: keeps the text of a large batch out of memory."""
_SUFFIX = {"none": "", "gzip": ".gz", "zstd": ".zst"}


class FilesSinkConfig(SinkConfig):
    """Files in a directory, one per batch, each visible atomically."""

    summary: ClassVar[str] = "JSONL or Parquet files: one per batch, visible at once and exactly once."

    type: Literal["files"] = "files"
    path: str
    """Directory of the files, relative to the pipeline file; created if missing, and this sink's alone."""
    format: Format = "jsonl"
    """`jsonl`: a JSON object a line. `parquet`: columns with their types."""
    compression: Compression | None = None
    """`none`, `gzip` or `zstd`, for Parquet also `snappy`; by default none for JSONL, zstd for Parquet."""

    @model_validator(mode="after")
    def _known_to_readers(self) -> Self:
        if self.format == "jsonl" and self.compression == "snappy":
            raise ValueError("compression snappy is for parquet; use gzip or zstd with jsonl")
        return self

    def local_directories(self, base: Path) -> tuple[Path, ...]:
        return (base / self.path,)

    def writes(self, base: Path) -> tuple[tuple[Path, str], ...]:
        packed = "" if self.format == "parquet" else _SUFFIX[self.compression or "none"]
        return (((base / self.path).resolve(), f"*.{self.format}{packed}"),)

    def target(self, base: Path) -> str | None:
        return str((base / self.path).resolve())

    def build(self, base: Path) -> FilesSink:
        compression = self.compression or ("zstd" if self.format == "parquet" else "none")
        return FilesSink(base / self.path, self.format, compression)


class FilesSink(Sink):
    atomic: ClassVar[bool] = True

    def __init__(self, directory: Path, format: Format = "jsonl", compression: Compression = "none") -> None:  # noqa: A002
        self._directory = directory
        self._format = format
        self._compression = compression
        self._suffix = ".parquet" if format == "parquet" else ".jsonl" + _SUFFIX[compression]

    def prepare(self) -> None:
        try:
            make_directory(self._directory / PARTS)
        except OSError as error:
            raise PermanentError(f"cannot create directory {self._directory}: {error.strerror}") from error
        if not os.access(self._directory / PARTS, os.W_OK | os.X_OK):
            raise PermanentError(f"cannot write to directory {self._directory}: permission denied")

    def open(self, part: Part) -> Writer:
        stem = self._parts(part.batch) / f"{part.partition:05d}-{part.attempt}-{token_hex(8)}"
        if self._format == "parquet":
            return _ParquetWriter(stem, self._compression)
        return _JsonlWriter(stem, self._suffix, self._compression)

    def commit(self, batch: BatchRef, parts: Sequence[bytes]) -> None:
        folder = self._parts(batch)
        names = [name for part in sorted(map(json.loads, parts)) for name in part]
        try:
            if names:
                self._publish(folder, [folder / name for name in names], self.file_of(batch))
            shutil.rmtree(folder, ignore_errors=True)
        except OSError as error:
            raise TransientError(_says(error, self.file_of(batch))) from error

    def file_of(self, batch: BatchRef) -> Path:
        """Where the rows of a batch are once it is committed."""
        return self._directory / (batch.key + self._suffix)

    def _parts(self, batch: BatchRef) -> Path:
        return self._directory / PARTS / batch.key

    def _publish(self, folder: Path, files: Sequence[Path], target: Path) -> None:
        missing = [file.name for file in files if not file.exists()]
        if missing and len(missing) == len(files) and target.exists():
            sync_directory(self._directory)  # committed before: parts disappear only after the rename
            return
        # If only some are there, others were committed with what these are to replace: rows that are in
        # these alone would count as written.
        if missing:
            raise TransientError(
                f"{', '.join(missing)} of {target.name} disappeared from {folder}: write the batch again"
            )
        whole = files[0]
        if len(files) > 1:
            whole = folder / ("whole" + self._suffix)
            merge = _merge_parquet if self._format == "parquet" else _concatenate
            merge(files, whole, self._compression)
            sync_file(whole)
        whole.replace(target)
        sync_directory(self._directory)


class _PartWriter(Writer):
    """What both formats share: the part's files, and how a failure of the disk is told."""

    def __init__(self, stem: Path) -> None:
        self._stem = stem
        self._files: list[Path] = []

    def write(self, rows: pa.RecordBatch) -> Sequence[Refusal]:
        sorted_out = fit(rows)
        if sorted_out.rows.num_rows:
            try:
                self._add(sorted_out.rows)
            except OSError as error:
                raise TransientError(_says(error, self._stem.parent)) from error
        return sorted_out.refusals

    def close(self) -> bytes | None:
        try:
            self._finish()
            if self._files:
                sync_directory(self._stem.parent)
        except OSError as error:
            raise TransientError(_says(error, self._stem.parent)) from error
        return json.dumps([file.name for file in self._files]).encode() if self._files else None

    @abstractmethod
    def _add(self, rows: pa.RecordBatch) -> None:
        """Take all rows or, raising OSError, none."""

    @abstractmethod
    def _finish(self) -> None:
        """Make all rows durable. Repeatable."""

    def _new_file(self, suffix: str) -> Path:
        self._stem.parent.mkdir(parents=True, exist_ok=True)
        return self._stem.with_name(f"{self._stem.name}-{len(self._files)}{suffix}")


class _JsonlWriter(_PartWriter):
    """Appends whole lines. Compressed, each write is a member of its own, which readers concatenate;
    a member that failed half way can be cut off again, a stream could not."""

    def __init__(self, stem: Path, suffix: str, compression: Compression) -> None:
        super().__init__(stem)
        self._suffix = suffix
        self._compression = compression
        self._descriptor: int | None = None
        self._size = 0

    def _add(self, rows: pa.RecordBatch) -> None:
        if self._descriptor is None:
            file = self._new_file(self._suffix)
            self._descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
            self._files.append(file)
        written = self._size
        try:
            for start in range(0, rows.num_rows, _SLICE_ROWS):
                text = buffer_of(json_lines(rows.slice(start, _SLICE_ROWS)))
                written += _write_all(self._descriptor, _compress(text, self._compression))
        except BaseException:
            os.ftruncate(self._descriptor, self._size)
            os.lseek(self._descriptor, self._size, os.SEEK_SET)
            raise
        self._size = written

    def _finish(self) -> None:
        if self._descriptor is not None:
            os.fsync(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None

    def abort(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        _remove(self._files)


class _ParquetWriter(_PartWriter):
    """Gathers rows, and writes each gathering as a file of its own: one that fails half way can be
    written again, which a file with several row groups could not."""

    def __init__(self, stem: Path, compression: Compression) -> None:
        super().__init__(stem)
        self._compression = compression
        self._gathered: list[pa.RecordBatch] = []

    def _add(self, rows: pa.RecordBatch) -> None:
        if not self._files and not self._gathered:
            _refuse_unknown_types(rows.schema)
        gathered = sum(batch.nbytes for batch in self._gathered)
        if self._gathered and gathered + rows.nbytes > ROW_GROUP_BYTES:
            self._flush()
        self._gathered.append(rows)

    def _finish(self) -> None:
        if self._gathered:
            self._flush()

    def _flush(self) -> None:
        file = self._new_file(".parquet")
        table = pa.Table.from_batches(self._gathered)
        try:
            pq.write_table(table, file, compression=self._compression, row_group_size=max(table.num_rows, 1))
            sync_file(file)
        except BaseException:
            file.unlink(missing_ok=True)
            raise
        self._files.append(file)
        self._gathered = []

    def abort(self) -> None:
        self._gathered = []
        _remove(self._files)


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


def _write_all(descriptor: int, data: memoryview) -> int:
    rest = data
    while len(rest):
        rest = rest[os.write(descriptor, rest) :]
    return len(data)


def _concatenate(files: Sequence[Path], target: Path, _: Compression) -> None:
    with target.open("wb") as out:
        for file in files:
            with file.open("rb") as part:
                _copy(part.fileno(), out.fileno(), file.stat().st_size)


def _copy(source: int, target: int, size: int) -> None:
    """In the kernel, without passing the bytes through this process."""
    while size > 0:
        try:
            copied = os.copy_file_range(source, target, size)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
            chunk = os.read(source, 1 << 20)
            copied = _write_all(target, memoryview(chunk))
        if copied == 0:
            raise OSError(errno.EIO, "a part is shorter than it was")
        size -= copied


def _merge_parquet(files: Sequence[Path], target: Path, compression: Compression) -> None:
    with pq.ParquetWriter(target, pq.read_schema(files[0]), compression=compression) as out:
        for file in files:
            with pq.ParquetFile(file) as part:
                for group in range(part.num_row_groups):
                    table = part.read_row_group(group)
                    out.write_table(table, row_group_size=max(table.num_rows, 1))


def _remove(files: Sequence[Path]) -> None:
    for file in files:
        try:
            file.unlink(missing_ok=True)
        except OSError:
            return  # the next commit of this batch removes it


def _says(error: OSError, path: Path) -> str:
    return f"cannot write to {path}: {error.strerror or brief(error)}"
