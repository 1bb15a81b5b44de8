"""`signoff backup`: a consistent copy of the state directory, also while the run goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from signoff.cli.reading import PipelineFile, load_for_reading, when
from signoff.engine.backup import back_up
from signoff.pipeline.model import SourceConfig
from signoff.sinks.pipeline import PipelineSinkConfig


def command(
    file: PipelineFile,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A directory that is not there yet.")],
) -> None:
    """Copy the state directory: log, ledger, dead letters, buffers, windows and folds, all of one moment.

    A run that is alive stands still for the last part of it, which is short. What sinks hold, and links to
    other pipelines, are not in it. Killed in between, it leaves no backup.
    """
    graph = load_for_reading(file)
    made = back_up(graph, directory)
    how = "while its run went on" if made.running else "while no run was alive"
    typer.echo(f"{graph.name}: {len(made.files)} files, {made.size} bytes as of {when(made.made_at)}, {how}")
    outside = [name for name, node in graph.sinks.items() if isinstance(node.config, PipelineSinkConfig)]
    outside += [
        name
        for name, node in graph.sources.items()
        if isinstance(node.config, SourceConfig) and getattr(node.config, "type", "") == "pipeline"
    ]
    for name in outside:
        typer.echo(f"not in it: the link of {name}, which belongs to another pipeline as well")
