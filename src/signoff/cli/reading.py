"""What the commands that read a state directory share: their arguments, and printing tables.

They may be used while a run goes on, after it, and before there was any: then everything is zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from signoff.clock import when as when
from signoff.errors import RequestError
from signoff.operate.loading import load_for_reading as load_for_reading
from signoff.operate.loading import load_job_for_reading as load_job_for_reading


def _text(given: str | None) -> str | None:
    if given is not None and any("\ud800" <= sign <= "\udfff" for sign in given):
        raise typer.BadParameter("it is not UTF-8")
    return given


PipelineFile = Annotated[Path, typer.Argument(metavar="FILE", help="Pipeline file, YAML or Python.")]
TEXT: dict[str, Any] = {"callback": _text}
"""For an argument that is looked up in a database, which takes only text; a shell gives any bytes."""
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@contextmanager
def as_usage(**hints: str) -> Iterator[None]:
    """What was asked for and cannot be done, as a wrong use of the command; `hints`: how its parts are called
    there. To be put on a command, below `@app.command()`."""
    try:
        yield
    except RequestError as error:
        raise typer.BadParameter(str(error), param_hint=hints.get(error.field)) from None


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


def ignored_outcomes(number: int) -> str:
    """What is said of outcomes that came too late."""
    if number == 1:
        return "1 outcome came for an event settled already, and was ignored"
    return f"{number} outcomes came for events settled already, and were ignored"


def dash(word: str) -> str:
    """`dead_lettered` as people write it."""
    return word.replace("_", "-")
