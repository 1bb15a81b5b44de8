"""Files in a directory or glob: one event per line or row; a file is acknowledged as a whole.

Files are read one after the other, oldest first. A file counts as complete when it has not changed
for `settle_ms`; files that take long to write should be written elsewhere and moved in. A kept file
that grows later is read on from where it ended; one that was replaced is read anew.

What it keeps: every line is handed out once, also across a SIGKILL at any moment (see
`file_registry`); a file is moved or deleted only when all its events are settled and it is still the
file that was read; nothing is ever overwritten.
"""

from __future__ import annotations

import os
import time
from collections import deque
from pathlib import Path
from typing import ClassVar, Literal

import pyarrow as pa
from pydantic import Field
from pyroaring import BitMap64

from signoff.errors import SourceError
from signoff.pipeline.model import SourceConfig
from signoff.sources.contract import EndOfSource, Resume, Settlement, Source, SourceContext
from signoff.sources.events import event_batch
from signoff.sources.file_formats import open_reader
from signoff.sources.file_moves import delete, move
from signoff.sources.file_reader import Format, Reader, Shape
from signoff.sources.file_registry import FileRegistry, Known
from signoff.sources.file_search import FileSearch, Rules, checksums

BATCH_BYTES = 4 * 1024**2
"""Payload bytes after which a batch is handed out, however few its events are."""
SUFFIXES: dict[str, Format] = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv", ".parquet": "parquet"
}  # fmt: skip


class FilesConfig(SourceConfig):
    """JSONL, text, CSV or Parquet files in a directory or glob."""

    summary: ClassVar[str] = "Reads files; a file is acknowledged when its last event is settled."
    type: Literal["files"] = "files"
    path: str = Field(min_length=1)
    """A file, a directory (the files directly in it) or a glob such as `./in/**/*.jsonl`."""
    format: Literal["auto", "jsonl", "text", "csv", "parquet"] = "auto"
    """What is in the files; `auto` goes by the suffix (`.jsonl`, `.csv`, `.parquet`, else text; a
    further `.gz` is decompressed). jsonl and text: an event is a line. csv and parquet: an event is
    a row, as a JSON object."""
    header: bool = True
    """csv: the first row holds the names; otherwise they are `_c0`, `_c1`, …"""
    delimiter: str = Field(default=",", min_length=1, max_length=1)
    """csv: what separates the fields."""
    on_acknowledge: Literal["keep", "move", "delete"] = "keep"
    """What happens to a file when all its events are settled."""
    move_to: str | None = None
    """Where acknowledged files go; null is a directory `acknowledged` next to the file."""
    on_refuse: Literal["keep", "move"] = "keep"
    """What happens instead to a file of which an event was refused, or that cannot be read."""
    refused_to: str | None = None
    """Where such files go; null is a directory `refused` next to the file."""
    settle_ms: int = Field(default=200, ge=0)
    """How long a file must be unchanged before it is read; a run with `--once` does not wait."""
    poll_ms: int = Field(default=200, ge=10)
    """How often to look for new files."""
    file_header: bool = True
    """Whether each event carries the path of its file as header `file`."""

    def build(self, base: Path) -> Source:
        return FilesSource(self, base)


class FilesSource(Source):
    """Reads on from (file number, byte offset or row number)."""

    def __init__(self, config: FilesConfig, base: Path) -> None:
        self._config = config
        self._base = base
        self._waiting: deque[Known] = deque()
        """Files to be read, in this order."""
        self._open: list[Known] = []
        """Files with events that are not settled, the one being read last."""
        self._current: Known | None = None
        self._reader: Reader | None = None
        self._status: os.stat_result | None = None
        self._next_sequence = 0
        self._settled = BitMap64()
        self._changed: list[Known] = []
        """Files of which more is known than is noted durably."""
        self._ready: pa.RecordBatch | None = None
        self._look_at = 0.0

    def open(self, context: SourceContext, resume: Resume) -> None:
        self._once = context.once
        self._search = FileSearch(self._base, self._rules(), self._appendable)
        self._search.require_path(resume)
        context.directory.mkdir(parents=True, exist_ok=True)
        self._registry = FileRegistry(context.directory / "files.db")
        self._next_sequence = resume.next_sequence
        current = self._registry.recover(resume)
        for file in self._registry.files.values():
            if file.first_seq is None:
                self._waiting.append(file)
            elif not file.done:
                self._open.append(file)
        if current is not None:
            self._read_on(current, resume.position or 0)
        if self._once:
            self._waiting.extend(self._search.look(self._registry))

    def receive(self, max_events: int, timeout_s: float) -> pa.RecordBatch | None:
        deadline = time.monotonic() + timeout_s
        if self._ready is None:
            self._ready = self._gather(max_events, deadline)
        if self._changed:
            self._registry.save(self._changed)
            self._changed = []
            self._finish_settled()  # a file without events owes nothing
        if self._ready is not None:
            ready, self._ready = self._ready, None
            return ready
        if self._current is None and not self._waiting:
            if self._once:
                raise EndOfSource
            self._wait_and_look(deadline)
        return None

    def settle(self, settlement: Settlement) -> None:
        self._settled |= settlement.acknowledged
        refused = BitMap64([*settlement.refused, *settlement.expired])
        self._settled |= refused
        if refused:
            hit = [file for file in self._open if not file.refused and _within(file, refused)]
            for file in hit:
                file.refused = True
            self._registry.save(hit)
        self._finish_settled()

    def drained(self) -> bool:
        return not any(self._owes(file) for file in self._open)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self._registry.close()

    # Reading

    def _gather(self, max_events: int, deadline: float) -> pa.RecordBatch | None:
        """Events of as many files as it takes to fill a batch."""
        batches: list[pa.RecordBatch] = []
        count = size = 0
        while count < max_events and size < BATCH_BYTES and (self._reader or self._begin_next()):
            assert self._reader is not None and self._current is not None
            piece = self._reader.read(max_events - count)
            if piece is None:
                self._end_current()
            elif len(piece):
                headers = {"file": self._shown(self._current.path)} if self._config.file_header else None
                batches.append(event_batch(piece, unit=self._current.unit, headers=headers))
                count, size = count + len(piece), size + piece.payload.nbytes
                self._next_sequence += len(piece)
            if time.monotonic() > deadline:
                break
        if len(batches) > 1:
            return pa.concat_batches(batches)
        return batches[0] if batches else None

    def _begin_next(self) -> bool:
        while self._waiting:
            file = self._waiting.popleft()
            if not self._start_reader(file, file.begin):
                self._registry.forget([file])  # gone before it was read
                continue
            assert self._status is not None
            file.first_seq, file.inode = self._next_sequence, self._status.st_ino
            self._open.append(file)
            self._changed.append(file)
            return True
        return False

    def _read_on(self, file: Known, position: int) -> None:
        """Go on with the file that was being read at the crash, if it is still the same."""
        found = self._start_reader(file, max(position, file.begin))
        status = self._status
        if not found or status is None:
            file.end_seq, file.size = self._next_sequence, -1
        elif status.st_ino != file.inode or (self._appendable(Path(file.path)) and status.st_size < position):
            assert self._reader is not None
            self._reader.close()
            self._reader = self._current = None
            file.end_seq, file.size = self._next_sequence, -1  # what is there now is another file
        self._registry.save([file])

    def _start_reader(self, file: Known, position: int) -> bool:
        path = Path(file.path)
        try:
            self._status = path.stat()
            self._reader = open_reader(path, self._shape(path), position)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise SourceError(
                f"cannot read {file.path}: {error.strerror}; nothing of it was taken: "
                "make it readable or move it away, and it goes on"
            ) from error
        self._current = file
        return True

    def _end_current(self) -> None:
        """Note what was read, so that a grown or replaced file is recognised later."""
        file, reader, status = self._current, self._reader, self._status
        assert file is not None and reader is not None and status is not None
        path = Path(file.path)
        file.end_seq = self._next_sequence
        file.size = reader.position if self._appendable(Path(file.path)) else status.st_size
        file.mtime_ns = status.st_mtime_ns
        file.refused = file.refused or bool(reader.damaged)
        try:
            file.head_crc, file.tail_crc = checksums(path, file.size)
        except OSError:
            file.head_crc = file.tail_crc = None
        reader.close()
        self._reader = self._current = None
        self._changed.append(file)

    def _shape(self, path: Path) -> Shape:
        config = self._config
        name = path.with_suffix("") if path.suffix == ".gz" else path
        form: Format = SUFFIXES.get(name.suffix, "text") if config.format == "auto" else config.format
        return Shape(form, config.max_event_bytes, config.delimiter, config.header)

    def _appendable(self, path: Path) -> bool:
        """Whether more bytes at the end of such a file are simply more events."""
        return self._shape(path).format != "parquet" and path.suffix != ".gz"

    def _rules(self) -> Rules:
        config = self._config
        away = [
            (None if target is None else self._base / target, name)
            for moves, target, name in (
                (config.on_acknowledge == "move", config.move_to, "acknowledged"),
                (config.on_refuse == "move", config.refused_to, "refused"),
            )
            if moves
        ]
        return Rules(config.path, 0 if self._once else config.settle_ms, tuple(away))

    def _shown(self, path: str) -> str:
        return path.removeprefix(f"{self._base}{os.sep}").removeprefix("./")

    def _wait_and_look(self, deadline: float) -> None:
        now = time.monotonic()
        if now < self._look_at:
            time.sleep(max(0.0, min(self._look_at, deadline) - now))
        if time.monotonic() >= self._look_at:
            self._waiting.extend(self._search.look(self._registry))
            self._look_at = time.monotonic() + self._config.poll_ms / 1000

    # Settling

    def _owes(self, file: Known) -> bool:
        if file.first_seq is None or file.end_seq is None:
            return True
        count = file.end_seq - file.first_seq
        return bool(self._settled.range_cardinality(file.first_seq, file.end_seq) != count)

    def _finish_settled(self) -> None:
        """Keep, move or delete the files of which every event is settled."""
        finished = [file for file in self._open if not self._owes(file)]
        if not finished:
            return
        gone = [file for file in finished if self._put_away(file)]
        kept = [file for file in finished if file not in gone]
        for file in kept:
            file.done = True
        self._registry.forget(gone)
        self._registry.save(kept)
        self._open = [file for file in self._open if self._owes(file)]
        lowest = self._open[0].first_seq if self._open else self._next_sequence
        self._settled.remove_range(0, lowest or 0)

    def _put_away(self, file: Known) -> bool:
        """Whether the row may go as well, because the file is gone or a later row stands for it."""
        config, path = self._config, Path(file.path)
        later = self._registry.newest.get(file.path)
        if later is not None and later is not file:
            later.refused = later.refused or file.refused
            return True
        try:
            status = path.stat()
        except FileNotFoundError:
            return True
        if (status.st_ino, status.st_size) != (file.inode, file.size):
            return False  # grown or replaced since: the rest is found by the next look
        if file.refused:
            if config.on_refuse == "move":
                move(path, self._target(path, config.refused_to, "refused"))
            return config.on_refuse == "move"
        if config.on_acknowledge == "move":
            move(path, self._target(path, config.move_to, "acknowledged"))
        elif config.on_acknowledge == "delete":
            delete(path)
        return config.on_acknowledge != "keep"

    def _target(self, path: Path, target: str | None, name: str) -> Path:
        return path.parent / name if target is None else self._base / target


def _within(file: Known, sequences: BitMap64) -> bool:
    end = sequences.max() + 1 if file.end_seq is None else file.end_seq
    return file.first_seq is not None and sequences.range_cardinality(file.first_seq, end) > 0
