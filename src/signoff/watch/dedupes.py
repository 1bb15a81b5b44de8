"""The `dedupe` and `throttle` steps of a pipeline as people see them: what they know, and what waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from signoff.ledger.fates import Fate, Fates
from signoff.ledger.ledger import Ledger
from signoff.ledger.outcome import EventId
from signoff.pipeline.graph import Graph
from signoff.stateful.key_index import FILE, KeyIndex, in_vain
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
    steps = _steps(graph)
    if not steps:
        return {}
    index = KeyIndex(graph.state / FILE, readonly=True)
    try:
        waiting = _waiting(steps, index, ledger)
        return {
            name: Dedupe(
                index.count(name, step.definition),
                len(waiting[name]),
                min(map(str, waiting[name]), default=""),
            )
            for name, step in steps.items()
        }
    finally:
        index.close()


def waits_in_vain(graph: Graph, ledger: Ledger, gone: Collection[str]) -> list[str]:
    """For people: rows that wait for events of sources that are not in the pipeline any more."""
    steps = _steps(graph)
    if not steps or not gone:
        return []
    index = KeyIndex(graph.state / FILE, readonly=True)
    try:
        waiting = _waiting(steps, index, ledger)
    finally:
        index.close()
    found = []
    for name in steps:
        for source, count in Counter(owner.source for owner in waiting[name]).items():
            if source in gone:
                rows = "1 row waits" if count == 1 else f"{count} rows wait"
                step = graph.transforms[name].config.type
                found.append(f'{step} "{name}": {rows} for events of source "{source}": {in_vain(source)}')
    return found


def _steps(graph: Graph) -> dict[str, Remembering]:
    return {
        name: node.config for name, node in graph.transforms.items() if isinstance(node.config, Remembering)
    }


def _waiting(steps: dict[str, Remembering], index: KeyIndex, ledger: Ledger) -> dict[str, list[EventId]]:
    """The events that rows wait for, by step."""
    fates = Fates(ledger)
    waiting: dict[str, list[EventId]] = {name: [] for name in steps}
    for source in ledger.sources():
        own = fates.in_flight(source)
        for each in index.waiting(source):
            is_open = fates(each.owner.source, each.owner.sequence) == Fate.IN_FLIGHT
            step = steps.get(each.step)
            same = step is not None and step.definition == each.definition
            if same and each.sequence in own and is_open:
                waiting[each.step].append(each.owner)
    return waiting
