"""Sources that are new by name, and read what another that is gone has read: all of it comes again."""

from __future__ import annotations

from collections.abc import Iterator

from signoff.ledger.ledger import Ledger
from signoff.log import LogReader
from signoff.pipeline.graph import Graph
from signoff.pipeline.model import SourceConfig


def read_again(graph: Graph, ledger: Ledger) -> Iterator[str]:
    """What is to be said of such sources, before they have received anything."""
    notes = graph.state / "intake"
    gone = sorted(
        place.name
        for place in (notes.iterdir() if notes.is_dir() else ())
        if place.is_dir() and place.name not in graph.sources
    )
    for name, node in graph.sources.items():
        assert isinstance(node.config, SourceConfig)
        if ledger.books(name).next or LogReader(graph.state / "log" / name).head():
            continue
        for old in gone:
            if files := node.config.read_before(graph.base, notes / old):
                yield (
                    f'source "{name}" is new, and {files:,} of the files it reads were read by "{old}", '
                    "which is not in the pipeline any more: all their rows come again, under new ids. "
                    f'If it was only renamed, stop and call it "{old}" again'
                )
