"""The folds of a pipeline as people see them: how many groups are open, and when the next one ends."""

from __future__ import annotations

from dataclasses import dataclass

from signoff.engine.split.boundaries import buffer_place
from signoff.ledger.outcome import BUFFER
from signoff.pipeline.graph import Graph
from signoff.stateful.open_groups import OpenGroups, open_groups_path


@dataclass(frozen=True)
class Fold:
    """One fold step, in a moment."""

    open_groups: int
    """Groups that have begun and not ended."""
    next_ends_at: float | None
    """When the first of them ends if no event does it before (seconds since the epoch); None: none does."""


def read_folds(graph: Graph) -> dict[str, Fold]:
    """Every fold step of the pipeline by name. May be read during a run, and before there was any."""
    return {name: _read(graph, name) for name, node in graph.transforms.items() if node.config.type == "fold"}


def _read(graph: Graph, name: str) -> Fold:
    groups = OpenGroups(open_groups_path(buffer_place(graph, name + BUFFER)), readonly=True)
    try:
        deadline = groups.next_deadline
        return Fold(groups.number, None if deadline is None else deadline / 1000)
    finally:
        groups.close_store()
