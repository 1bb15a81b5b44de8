"""How many events wait for a sink that has failed on them, to be tried again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from signoff.ledger import Ledger
from signoff.pipeline.graph import Graph


def events_owed(graph: Graph, sinks: Collection[str]) -> dict[str, int]:
    """By sink, of those that are asked about. Reads every open batch: ask about those that fail."""
    found: Counter[str] = Counter()
    if not sinks:
        return {}
    with Ledger(graph.state / "ledger.db", readonly=True) as ledger:
        for source in {source for source, who in ledger.owing() if who in sinks}:
            for batch in ledger.open_batches(source):
                for sink in sinks:
                    state = batch.sinks.get(sink)
                    if state is not None and state.tried and not state.done:
                        owed = state.owes(batch.owed)
                        found[sink] += len(owed if state.arrived is None else owed & state.arrived)
    return dict(found)
