"""`signoff backup`: a consistent copy of the state directory, also while the run goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from signoff.cli.reading import PipelineFile, load_for_reading, when
from signoff.engine.state_dir.backup import back_up
from signoff.link.sink import PipelineSinkConfig
from signoff.pipeline.model import SourceConfig
from signoff.terminal import say


def command(
    file: PipelineFile,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A new directory.")],
) -> None:
    """Back up the state directory, as of one moment.

    A backup holds log, ledger, dead letters, buffers, windows and folds, but neither the sinks' data nor
    links to other pipelines. A running pipeline is paused for the last, short part. A backup that is killed
    leaves nothing that could be restored.
    """
    graph = load_for_reading(file)
    made = back_up(graph, directory)
    how = "while its run went on" if made.running else "while no run was alive"
    say(f"{graph.name}: {len(made.files)} files, {made.size} bytes as of {when(made.made_at)}, {how}")
    outside = [name for name, node in graph.sinks.items() if isinstance(node.config, PipelineSinkConfig)]
    outside += [
        name
        for name, node in graph.sources.items()
        if isinstance(node.config, SourceConfig) and getattr(node.config, "type", "") == "pipeline"
    ]
    for name in outside:
        say(f"not in it: the link of {name}, which belongs to another pipeline as well")
