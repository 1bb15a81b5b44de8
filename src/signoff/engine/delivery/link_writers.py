"""The links that lead from a pipeline into others: each has one writer (see `signoff.link.ownership`)."""

from __future__ import annotations

from signoff.ledger.ledger import Ledger
from signoff.link.ownership import claim_writing
from signoff.link.sink import PipelineSinkConfig
from signoff.pipeline.graph import Graph
from signoff.sinks.contract import BatchRef


def claim_links(graph: Graph, ledger: Ledger) -> None:
    """Become the writer of the links to other pipelines. Raises StateError if one is another pipeline's."""

    def knows(batch: BatchRef) -> bool:
        return ledger.batch(batch.source, batch.start, batch.end) is not None

    for node in graph.sinks.values():
        if isinstance(node.config, PipelineSinkConfig):
            claim_writing(node.config.place(graph.base), graph.name, graph.state, ledger, knows)
