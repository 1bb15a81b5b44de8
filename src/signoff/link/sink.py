"""Sink `pipeline`: sends rows to another pipeline, through a log on disk.

The other pipeline reads them with its source `pipeline`. An event is settled here when that one has settled
everything that was made of it: it is acknowledged end to end, through both.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from signoff.link.handover import HandoverSink, LinkPlace
from signoff.pipeline.model import SinkConfig


class PipelineSinkConfig(SinkConfig):
    """Another pipeline."""

    summary: ClassVar[str] = "Hands rows on to another pipeline; settled when that one has settled them."
    example: ClassVar[str] = "path: ./links/alarms"

    type: Literal["pipeline"] = "pipeline"
    path: str
    """Directory of the link, which the source `pipeline` of the other one names as well."""
    max_bytes: int = Field(default=1024**3, ge=1024 * 1024)
    """Bytes in the link, not settled yet, at which the sources of this pipeline are held back."""

    def place(self, base: Path) -> LinkPlace:
        directory = (base / self.path).resolve()
        return LinkPlace(directory / "log", directory)

    def build(self, base: Path) -> HandoverSink:
        return HandoverSink(self.type, self.place(base), self.max_bytes, "block")

    def local_directories(self, base: Path) -> tuple[Path, ...]:
        return (base / self.path,)

    def writes(self, base: Path) -> tuple[tuple[Path, str], ...]:
        place = self.place(base)
        return (place.log.resolve(), "*"), (place.notes.resolve(), "*")

    def target(self, base: Path) -> str:
        return f"link {(base / self.path).resolve()}"
