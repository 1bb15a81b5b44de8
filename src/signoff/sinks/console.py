"""Sink `console`: rows printed by the run itself, for trying a pipeline out.

Tasks hand their first rows to the driver; `commit` prints them. A batch is printed again when it is
replayed: a terminal cannot take anything back.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal

import pyarrow as pa
from pydantic import Field

from signoff.json_text import buffer_of, json_lines
from signoff.pipeline.model import SinkConfig
from signoff.sinks.contract import BatchRef, Part, Refusal, Sink, Writer
from signoff.sinks.refusal import fit


class ConsoleSinkConfig(SinkConfig):
    """Rows on standard output, one JSON object a line."""

    summary: ClassVar[str] = "Rows on standard output, as JSON lines; for trying things out."

    type: Literal["console"] = "console"
    max_rows: int = Field(default=20, ge=0)
    """Most rows printed of each batch; a line says how many more there are."""

    def belongs_to_project(self, base: Path) -> bool:
        return True

    def build(self, base: Path) -> ConsoleSink:
        return ConsoleSink(self.max_rows)


class ConsoleSink(Sink):
    atomic: ClassVar[bool] = True

    def __init__(self, max_rows: int = 20) -> None:
        self._max_rows = max_rows

    def open(self, part: Part) -> Writer:
        return _ConsoleWriter(part.partition, self._max_rows)

    def commit(self, batch: BatchRef, parts: Sequence[bytes]) -> None:
        total = 0
        lines: list[bytes] = []
        for part in sorted(parts, key=_partition):
            head, _, text = part.partition(b"\n")
            total += int(head.split()[1])
            lines += text.splitlines(keepends=True)
        shown = lines[: self._max_rows]
        if total > len(shown):
            shown.append(f"… {total - len(shown)} more rows in {batch.key}\n".encode())
        sys.stdout.write(b"".join(shown).decode())
        sys.stdout.flush()


class _ConsoleWriter(Writer):
    """Keeps no more rows than may be printed, however large the batch."""

    def __init__(self, partition: int, max_rows: int) -> None:
        self._partition = partition
        self._max_rows = max_rows
        self._rows = 0
        self._kept: list[bytes] = []

    def write(self, rows: pa.RecordBatch) -> Sequence[Refusal]:
        sorted_out = fit(rows)
        room = max(self._max_rows - self._rows, 0)
        if room:
            self._kept.append(buffer_of(json_lines(sorted_out.rows.slice(0, room))).to_pybytes())
        self._rows += sorted_out.rows.num_rows
        return sorted_out.refusals

    def close(self) -> bytes | None:
        if not self._rows:
            return None
        return f"{self._partition} {self._rows}\n".encode() + b"".join(self._kept)


def _partition(part: bytes) -> int:
    return int(part.split(b" ", 1)[0])
