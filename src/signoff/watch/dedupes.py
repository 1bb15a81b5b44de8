"""The `dedupe` and `throttle` steps of a pipeline as people see them: what they know, and what waits."""

from __future__ import annotations

from dataclasses import dataclass

from signoff.ledger.fates import Fate, Fates
from signoff.ledger.ledger import Ledger
from signoff.pipeline.graph import Graph
from signoff.stateful.key_index import FILE, KeyIndex
from signoff.transforms.dedupe import Remembering


@dataclass(frozen=True)
class Dedupe:
    """One dedupe step, in a moment."""

    keys: int
    """Keys that are remembered."""
    waiting: int
    """Rows that wait for the events they repeat."""
    waits_for: str
    """One of those events; '' if none is waited for."""


def read_dedupes(graph: Graph, ledger: Ledger) -> dict[str, Dedupe]:
    """Every such step of the pipeline by name. May be read during a run, and before there was any."""
    steps = {
        name: node.config for name, node in graph.transforms.items() if isinstance(node.config, Remembering)
    }
    if not steps:
        return {}
    index, fates = KeyIndex(graph.state / FILE, readonly=True), Fates(ledger)
    try:
        waiting: dict[str, list[str]] = {name: [] for name in steps}
        for source in ledger.sources():
            own = fates.in_flight(source)
            for each in index.waiting(source):
                owner = each.owner
                is_open = fates(owner.source, owner.sequence) == Fate.IN_FLIGHT
                step = steps.get(each.step)
                same = step is not None and step.definition == each.definition
                if same and each.sequence in own and is_open:
                    waiting[each.step].append(str(owner))
        return {
            name: Dedupe(
                index.count(name, step.definition), len(waiting[name]), min(waiting[name], default="")
            )
            for name, step in steps.items()
        }
    finally:
        index.close()
