"""Sink `files`: files in a directory, one per batch or several by value and size, each complete and once.

    <path>/.parts/<batch>/<partition>-<attempt>-<token>-<n>.<ext>   written and fsynced by a task; invisible
    <path>/<batch>.<ext>                                            renamed into place by `commit`
    <path>/<column>=<value>/<batch>.<ext>                           with `partition_by`
    <path>/<batch>-<n>.<ext>                                        with a limit on the size of files

Invariants: a file in `<path>` is complete and never changes its rows; a replayed batch has the same
names and replaces them, also if it has another format by now, or no rows. A failed write leaves no half
line: the part is cut back to the last whole one. What a crash leaves below `.parts` goes with the next commit
of the same batch. Until then a part never changes, also not by another run: a receipt may name it.

The directory belongs to one sink of one pipeline: names tell batches apart, not sinks. On a
cluster it must be on a file system all executors and the driver share.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from secrets import token_hex
from typing import Annotated, ClassVar, Literal, Self

import pyarrow as pa
from pydantic import Field, model_validator

from signoff.durable import make_directory, write_whole
from signoff.errors import PermanentError
from signoff.pipeline.model import Names, SinkConfig
from signoff.sinks.contract import EVENT_ID, BatchRef, Part, Refusal, RunRef, Sink, Writer
from signoff.sinks.csv_text import CsvShape, Quoting
from signoff.sinks.disk_failures import disk_failure
from signoff.sinks.files.commit import PARTS, Commit, Layout, forget_old, remove_within
from signoff.sinks.files.partitions import LONGEST_PATH, PREFIX, divided, is_too_long
from signoff.sinks.files.parts import Compression, Limits, LineFiles, ParquetFiles, PartFile, PartFiles
from signoff.sinks.owners import refuse_others
from signoff.sinks.refusal import brief, fit, refused

Format = Literal["jsonl", "csv", "parquet"]
Expression = Annotated[str, Field(min_length=1)]

_SUFFIX = {"none": "", "gzip": ".gz", "zstd": ".zst"}
OWNERS = ".owners.json"
"""Which job the rows of a query are of: see `sinks.owners`."""
_TIDY_UP = 1_000
"""After so many commits the notes of old ones are removed."""


class FilesSinkConfig(SinkConfig):
    """Files in a directory, one per batch or by value and size, each visible atomically."""

    summary: ClassVar[str] = (
        "JSONL, CSV or Parquet files, by batch, value and size, each complete and exactly once."
    )

    type: Literal["files"] = "files"
    path: str
    """Directory of the files, relative to the pipeline file; created if missing, and this sink's alone."""
    format: Format = "jsonl"
    """`jsonl`: a JSON object a line. `csv`: a line of fields. `parquet`: columns with their types."""
    compression: Compression | None = None
    """`none`, `gzip` or `zstd`, for Parquet also `snappy`; by default zstd for Parquet, else none."""
    partition_by: Names | Mapping[str, Expression] = ()
    """Directories by value, as Hive and Spark lay them out (`day=2021-05-01/kind=fire`): names of columns,
    which are then not in the files, or names and Spark SQL expressions, as in `{day: to_date(eventTime)}`."""
    max_file_rows: int | None = Field(default=None, ge=1)
    """Rows of a file at most; the rest of a batch goes to further files."""
    max_file_bytes: int | None = Field(default=None, ge=1024)
    """Bytes of a file at most, as near as whole rows come to it."""
    header: bool = True
    """csv: whether each file begins with the names of the columns."""
    delimiter: str = Field(default=",", min_length=1, max_length=1)
    """csv: what separates the fields."""
    quote: Quoting = "needed"
    """csv: `needed` quotes fields that would be read wrong otherwise, `all` every one that is not null."""
    null_value: str = ""
    """csv: the text for null, not quoted; a string with the same text is quoted."""

    @model_validator(mode="after")
    def _known_to_readers(self) -> Self:
        if self.format != "parquet" and self.compression == "snappy":
            raise ValueError(f"compression snappy is for parquet; use gzip or zstd with {self.format}")
        if any(sign in self.null_value for sign in (self.delimiter, '"', "\n", "\r")):
            raise ValueError("null_value cannot hold the delimiter, a quote or a line break")
        if self.delimiter in '"\r\n':
            raise ValueError("delimiter cannot be a quote or a line break")
        if EVENT_ID in self.partition_by:
            raise ValueError(f"partition_by {EVENT_ID} would make a directory of every row")
        return self

    def expressions(self) -> Mapping[str, str]:
        return {f"{PREFIX}{number}": sql for number, sql in enumerate(self._partitions().values())}

    def _partitions(self) -> dict[str, str]:
        if isinstance(self.partition_by, Mapping):
            return dict(self.partition_by)
        return {name: "`" + name.replace("`", "``") + "`" for name in self.partition_by}

    def local_directories(self, base: Path) -> tuple[Path, ...]:
        return (base / self.path,)

    def writes(self, base: Path) -> tuple[tuple[Path, str], ...]:
        packed = "" if self.format == "parquet" else _SUFFIX[self.compression or "none"]
        deep = [f"{name}=*" for name in self.partition_by]
        return (((base / self.path).resolve().joinpath(*deep), f"*.{self.format}{packed}"),)

    def target(self, base: Path) -> str | None:
        return str((base / self.path).resolve())

    def build(self, base: Path) -> FilesSink:
        compression = self.compression or ("zstd" if self.format == "parquet" else "none")
        csv = CsvShape(self.header, self.delimiter, self.null_value, self.quote)
        limits = Limits(self.max_file_rows, self.max_file_bytes)
        given = () if isinstance(self.partition_by, Mapping) else self.partition_by
        return FilesSink(
            base / self.path,
            self.format,
            compression,
            csv,
            limits,
            tuple(self._partitions()),
            frozenset(given),
        )


class FilesSink(Sink):
    atomic: ClassVar[bool] = True
    takes_back: ClassVar[bool] = True

    def __init__(
        self,
        directory: Path,
        format: Format = "jsonl",  # noqa: A002
        compression: Compression = "none",
        csv: CsvShape | None = None,
        limits: Limits | None = None,
        partitions: tuple[str, ...] = (),
        columns: frozenset[str] = frozenset(),
    ) -> None:
        self._format: Format = format
        self._csv = (csv or CsvShape()) if format == "csv" else None
        self._partitions, self._columns = partitions, columns
        suffix = ".parquet" if format == "parquet" else f".{format}{_SUFFIX[compression]}"
        self._layout = Layout(directory, suffix, compression, limits or Limits(), bool(partitions))
        self._commits = 0

    def prepare(self) -> None:
        directory = self._layout.directory
        try:
            make_directory(directory / PARTS)
            forget_old(directory)
        except OSError as error:
            raise PermanentError(f"cannot create directory {directory}: {error.strerror}") from error
        if not os.access(directory / PARTS, os.W_OK | os.X_OK):
            raise PermanentError(f"cannot write to directory {directory}: permission denied")

    def open(self, part: Part) -> Writer:
        layout = self._layout
        stem = (
            layout.directory / PARTS / part.batch.key / f"{part.partition:05d}-{part.attempt}-{token_hex(8)}"
        )
        files: PartFiles = (
            ParquetFiles(stem, layout.suffix, layout.compression, layout.limits)
            if self._format == "parquet"
            else LineFiles(stem, layout.suffix, layout.compression, layout.limits, self._csv)
        )
        room = LONGEST_PATH - len(os.fsencode(layout.longest(part.batch.key).absolute()))
        return _FilesWriter(files, stem.parent, self._partitions, self._columns, room)

    def commit(self, batch: BatchRef, parts: Sequence[bytes]) -> None:
        files = [PartFile(*entry) for part in sorted(map(json.loads, parts)) for entry in part]
        try:
            commit = Commit(self._layout, batch.key)
            commit.publish(files) if files else commit.remove()
            shutil.rmtree(self._layout.directory / PARTS / batch.key, ignore_errors=True)
            self._commits += 1
            if self._commits % _TIDY_UP == 0:
                forget_old(self._layout.directory)
        except OSError as error:
            raise disk_failure(error, _says(error, self.file_of(batch))) from error

    def refuse_others(self, owner: str, sources: Set[str]) -> None:
        try:
            self._refuse_others(owner, sources)
        except OSError as error:
            directory = self._layout.directory
            raise disk_failure(error, f"cannot read {directory}: {error.strerror or brief(error)}") from error

    def claim(self, owner: str, sources: Set[str]) -> None:
        directory = self._layout.directory
        try:
            make_directory(directory)
            lock = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                known = self._refuse_others(owner, sources)
                if sources - known.keys():
                    write_whole(
                        directory / OWNERS, json.dumps(dict.fromkeys(sources, owner) | known).encode()
                    )
            finally:
                os.close(lock)
        except OSError as error:
            raise disk_failure(error, _says(error, directory)) from error

    def _refuse_others(self, owner: str, sources: Set[str]) -> dict[str, str]:
        """Returns whose the queries are."""
        note = self._layout.directory / OWNERS
        known: dict[str, str] = json.loads(note.read_bytes()) if note.exists() else {}
        place = str(self._layout.directory)
        refuse_others(place, owner, sources, known, lambda source: f'remove "{source}" from {note}')
        return known

    def finish(self, run: RunRef) -> None:
        """Remove the files of earlier runs with the same key."""
        try:
            for ranges in run.earlier:
                for source, (first, end) in ranges.items():
                    remove_within(self._layout, source, first, end)
        except OSError as error:
            raise disk_failure(error, _says(error, self._layout.directory)) from error

    def file_of(self, batch: BatchRef) -> Path:
        """Where the rows of a batch are once it is committed, if they are in one file."""
        return self._layout.directory / (batch.key + self._layout.suffix)


class _FilesWriter(Writer):
    """One task's rows."""

    def __init__(
        self, files: PartFiles, folder: Path, partitions: tuple[str, ...], columns: frozenset[str], room: int
    ) -> None:
        self._files, self._folder, self._room = files, folder, room
        self._partitions, self._columns = partitions, columns

    def write(self, rows: pa.RecordBatch) -> Sequence[Refusal]:
        sorted_out = fit(rows)
        by_directory, refusals = self._divided(sorted_out.rows)
        if by_directory:
            try:
                self._files.add(by_directory)
            except OSError as error:
                raise disk_failure(error, _says(error, self._folder)) from error
        return sorted_out.original(refusals)

    def close(self) -> bytes | None:
        try:
            self._files.finish()
        except OSError as error:
            raise disk_failure(error, _says(error, self._folder)) from error
        files = self._files.files
        return json.dumps([file.entry() for file in files]).encode() if files else None

    def abort(self) -> None:
        self._files.remove()

    def _divided(self, rows: pa.RecordBatch) -> tuple[list[tuple[str, pa.RecordBatch]], list[Refusal]]:
        """The rows by directory, without what the directories say; and those that have none."""
        if not rows.num_rows:
            return [], []
        if not self._partitions:
            return [("", rows)], []
        count = rows.num_columns - len(self._partitions)
        values = [rows.column(count + number) for number in range(len(self._partitions))]
        names = rows.schema.names[:count]
        for name in self._partitions:
            if name in names and name not in self._columns:
                raise PermanentError(
                    f'partition_by computes "{name}", which is a column as well; give it another name'
                )
        plain = rows.select([name for name in names if name not in self._columns])
        found, refusals = [], []
        for directory, indices in divided(self._partitions, values):
            if is_too_long(directory, self._room):
                reason = "values of partition_by are longer than the name or path of a directory may be"
                refusals += [refused(index, reason) for index in indices.to_pylist()]
            elif len(indices) == rows.num_rows:
                found.append((directory, plain))
            else:
                found.append((directory, plain.take(indices)))
        return found, sorted(refusals, key=lambda one: one.index)


def _says(error: OSError, path: Path) -> str:
    return f"cannot write to {path}: {error.strerror or brief(error)}"
