"""`signoff run`: run a pipeline, live."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from signoff.catalog import default
from signoff.engine.supervise import Run, RunOptions
from signoff.pipeline.load import load
from signoff.watch.logs import set_up_logging
from signoff.watch.progress import Progress

_PATIENCE_S = 30.0


def command(
    file: Annotated[Path, typer.Argument(help="Pipeline file, YAML or Python.")],
    once: Annotated[
        bool, typer.Option("--once", help="Process all there is, settle it, and end. Exit code 3: something "
                           "was refused or is still owed.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only warnings.")] = False,
    log_format: Annotated[str, typer.Option("--log-format", help="text or json (for services).")] = "text",
    drain_seconds: Annotated[
        float, typer.Option(min=0, help="After SIGTERM, how long what is in flight may take to finish.")
    ] = 30.0,
    patience_seconds: Annotated[
        float, typer.Option(min=0, help="With --once: how long to wait for a sink that fails.")
    ] = _PATIENCE_S,
) -> None:  # fmt: skip
    """Run a pipeline until SIGTERM or Ctrl-C, which finish what is in flight; or once."""
    if log_format not in ("text", "json"):
        raise typer.BadParameter("text or json", param_hint="--log-format")
    set_up_logging(log_format)  # type: ignore[arg-type]
    graph = load(file, default())
    options = RunOptions(once, drain_seconds, patience_seconds if once else None, log_format)  # type: ignore[arg-type]
    run = Run(graph, options, file.resolve())

    def stop(*_: object) -> None:
        if run.stop_requested:
            sys.exit(130)
        run.stop_requested = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    with Progress(graph, quiet=quiet or log_format == "json") as progress:
        code = run.execute(progress.tick)
    raise typer.Exit(code)
