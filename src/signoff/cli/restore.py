"""`signoff restore`: put a backup in the place of a state directory, and say what it can and cannot do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from signoff.cli.reading import PipelineFile, load_for_reading, when
from signoff.engine.state_dir.backup import Backup, restore
from signoff.engine.state_dir.identity import StateIdentity
from signoff.errors import StateError
from signoff.ledger import Ledger
from signoff.link.sink import PipelineSinkConfig
from signoff.log import LogReader
from signoff.pipeline.graph import Graph
from signoff.terminal import say


def command(
    file: PipelineFile,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A backup made by `signoff backup`.")],
) -> None:
    """Restore a backup as the state directory, which must not exist; then print the consequences.

    Every file is verified. The next run delivers the events that were not settled at the time of the backup.
    """
    graph = load_for_reading(file)
    made = restore(graph, directory)
    with Ledger(graph.state / "ledger.db", readonly=True) as ledger:
        found = StateIdentity(graph.state, ledger, LogReader).misfits(graph.sources)
        if found:
            raise StateError("\n".join(finding.text for finding in found))
        say(f"{graph.name}: {len(made.files)} files as of {when(made.made_at)} are in {graph.state}")
        for sentence in consequences(graph, ledger, made):
            say(sentence)


def consequences(graph: Graph, ledger: Ledger, made: Backup) -> Iterator[str]:
    """What the restored state may do, and what it cannot."""
    then = when(made.made_at)
    for name in graph.sources:
        head = LogReader(graph.state / "log" / name).head()
        account = ledger.books(name).account(head)
        if account.in_flight:
            yield (
                f"{name}: {account.in_flight} events were not settled then, and are worked on again; sinks "
                "that know ids hold them once, others may get them twice"
            )
        if graph.acknowledges(name):
            yield (
                f"{name}: events acknowledged after {then} do not come again. What sinks have taken of them "
                "is there; their dead letters, and what windows, folds and buffers held of them, are lost"
            )
        else:
            yield f"{name}: what was received after {then}, and is not given again, is not in this backup"
        yield (
            f"{name}: numbers from {head} on are given again. If it received anything after {then}, restore "
            "sinks that know ids (sqlite, postgres, files) to that time as well, or rename the source: they "
            "would replace rows by others"
        )
    links = [name for name, node in graph.sinks.items() if isinstance(node.config, PipelineSinkConfig)]
    for name in links if made.running else ():
        yield (
            f"{name}: rows went into its link after the backup: a run is refused ([link-writer]) until the "
            "pipeline that reads it has settled them"
        )
