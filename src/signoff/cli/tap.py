"""`signoff tap`: rows as they pass a node."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated

import typer

from signoff.cli.reading import PipelineFile, dash, load_for_reading
from signoff.pipeline.graph import Graph
from signoff.terminal import say

if TYPE_CHECKING:
    from signoff.watch.tap import TappedRow

_LOOK_S = 0.5


def command(
    file: PipelineFile,
    node: Annotated[
        str, typer.Argument(metavar="NODE", help="A source, a transform, NAME.OUTPUT of a route, or a sink.")
    ],
    where: Annotated[
        str | None,
        typer.Option(metavar="SQL", help="Only rows for which this condition on their columns is true."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many rows.")] = 20,
    follow: Annotated[
        bool, typer.Option("--follow", help="Keep showing new rows, until Ctrl-C or the limit.")
    ] = False,
    calls: Annotated[
        bool,
        typer.Option(
            "--calls", help="Call the functions and services in front of the node again, for these rows."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
) -> None:
    """Show the newest rows at a node and their outcomes, also while the pipeline runs.

    A tap changes nothing: it settles no event, and calls no sink, service or function. It shows what is still
    in the log: every event that is not settled, and the newest settled ones.
    """
    graph = _load(file, calls=calls)
    from signoff.watch.tap import Tap

    left = limit
    with Tap(graph, node, where=where, calls=calls) as tap:
        try:
            while left > 0:
                rows = tap.take(left)
                for row in rows:
                    say(json.dumps(row.as_dict(), ensure_ascii=False) if as_json else _line(row))
                left -= len(rows)
                if not follow:
                    return
                time.sleep(_LOOK_S)
        except KeyboardInterrupt:
            return


def _load(file: PipelineFile, *, calls: bool) -> Graph:
    """What is to be called needs its secrets; all else is shown also in a shell that does not have them."""
    if not calls:
        return load_for_reading(file)
    from signoff.catalog import default
    from signoff.pipeline.load import load

    return load(file, default())


def _line(row: TappedRow) -> str:
    states = [row.event, *([f"{row.sink} at the sink"] if row.sink else ())]
    told = f"{row.event_id} ({', '.join(dash(state) for state in states)})"
    by = f" by {row.input}" if row.input else ""
    if row.at == "passed":
        return f"{told}{by}: {json.dumps(dict(row.row), ensure_ascii=False)}"
    return f"{told}{by} {row.at}: {row.reason}"
