"""`signoff top`: a pipeline while it runs, drawn again and again."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer

from signoff.cli.reading import PipelineFile, load_for_reading
from signoff.terminal import is_terminal


def command(
    file: PipelineFile,
    every: Annotated[float, typer.Option(min=0.2, metavar="SECONDS", help="How often to refresh.")] = 1.0,
) -> None:
    """Show rates, backlog, sinks, windows and problems, refreshed until Ctrl-C."""
    graph = load_for_reading(file)
    if not is_terminal(sys.stdout):
        raise typer.BadParameter(
            "it draws on a terminal only; signoff status FILE prints once", param_hint="top"
        )
    from rich.console import Console
    from rich.live import Live

    from signoff.watch.status import read_status
    from signoff.watch.top import Readings, picture

    console, readings = Console(), Readings()
    readings.add(read_status(graph))
    try:
        with Live(picture(readings, console.width), console=console, screen=True, auto_refresh=False) as live:
            while True:
                time.sleep(every)
                readings.add(read_status(graph))
                live.update(picture(readings, console.width), refresh=True)
    except KeyboardInterrupt:
        console.print(picture(readings, console.width))
