"""`signoff run`: run a pipeline, live."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from signoff.engine.run_options import RunOptions

if TYPE_CHECKING:
    from signoff.pipeline.graph import Graph

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
    from signoff.watch.live import run_live

    def load() -> Graph:
        from signoff.catalog import default
        from signoff.pipeline.load import load as load_file
        from signoff.watch.logs import set_up_logging

        set_up_logging(log_format)  # type: ignore[arg-type]
        return load_file(file, default())

    patience = patience_seconds if once else None
    options = RunOptions(once, drain_seconds, patience, log_format)  # type: ignore[arg-type]
    raise typer.Exit(run_live(load, file.resolve(), options, quiet=quiet))
