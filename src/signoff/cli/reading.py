"""What the commands that look at a state directory share: loading the pipeline, printing tables.

They may be used while a run goes on, after it, and before there was any: then everything is zero.
They need the names in the pipeline, not its secrets.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from signoff.pipeline.graph import Graph


def _text(given: str | None) -> str | None:
    if given is not None and any("\ud800" <= sign <= "\udfff" for sign in given):
        raise typer.BadParameter("it is not UTF-8")
    return given


PipelineFile = Annotated[Path, typer.Argument(metavar="FILE", help="Pipeline file, YAML or Python.")]
TEXT: dict[str, Any] = {"callback": _text}
"""For an argument that is looked up in a database, which takes only text; a shell gives any bytes."""
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def load_for_reading(file: Path) -> Graph:
    """The graph, also in a shell that does not have the secrets of the run."""
    from signoff.catalog import default
    from signoff.pipeline.load import load

    return load(file, default(), require_secrets=False)


def table(header: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[str] = ()) -> str:
    """Plain columns, the same in a terminal and in a pipe."""
    cells = [list(header), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]

    def line(row: Sequence[str]) -> str:
        parts = (
            cell.rjust(width) if name in right else cell.ljust(width)
            for cell, width, name in zip(row, widths, header, strict=True)
        )
        return "  ".join(parts).rstrip()

    return "\n".join(line(row) for row in cells)


def when(seconds: float | None) -> str | None:
    """A time for people and JSON: ISO 8601 in UTC."""
    return None if seconds is None else f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"


def dash(word: str) -> str:
    """`dead_lettered` as people write it."""
    return word.replace("_", "-")
