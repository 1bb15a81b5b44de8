"""Standard input: one event a line.

Nobody can be told, and nothing can be asked for again: what was read from the pipe and is not in the
log when the process dies is lost. That is at most what one group commit holds; use another source
where it matters.
"""

from __future__ import annotations

import os
import select
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa

from signoff.pipeline.model import SourceConfig
from signoff.sources.contract import EndOfSource, Resume, Settlement, Source, SourceContext
from signoff.sources.events import Piece, event_batch
from signoff.sources.lines import LineSplitter

CHUNK_BYTES = 1024**2
STDIN = 0


class StdinConfig(SourceConfig):
    """Lines from standard input."""

    summary: ClassVar[str] = "Reads lines from standard input; cannot acknowledge."
    can_acknowledge: ClassVar[bool] = False
    type: Literal["stdin"] = "stdin"

    def belongs_to_project(self, base: Path) -> bool:
        return True

    def build(self, base: Path) -> Source:
        return StdinSource(self)


class StdinSource(Source):
    """`position` is the number of lines so far, also across restarts."""

    def __init__(self, config: StdinConfig, descriptor: int = STDIN) -> None:
        self._descriptor = descriptor
        self._lines = LineSplitter(config.max_event_bytes)
        self._ended = False
        self._count = 0

    def open(self, context: SourceContext, resume: Resume) -> None:
        self._count = resume.position or 0

    def receive(self, max_events: int, timeout_s: float) -> pa.RecordBatch | None:
        lines = self._lines.take(max_events)
        if lines is None:
            if self._ended:
                raise EndOfSource
            self._read(timeout_s)
            lines = self._lines.take(max_events)
        if not lines:
            return None
        positions = np.arange(self._count + 1, self._count + len(lines) + 1)
        self._count += len(lines)
        return event_batch(Piece(lines.payload, positions, lines.errors))

    def settle(self, settlement: Settlement) -> None:
        """Nobody is there to be told."""

    def close(self) -> None:
        """The input belongs to the run."""

    def _read(self, timeout_s: float) -> None:
        if not select.select([self._descriptor], [], [], timeout_s)[0]:
            return
        data = os.read(self._descriptor, CHUNK_BYTES)
        if data:
            self._lines.feed(data)
        else:
            self._ended = True
            self._lines.finish()
