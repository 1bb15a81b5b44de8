"""What a `dedupe` or `throttle` decided of rows, read from its index: a tap takes no key and no place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from signoff.ledger.ledger import Ledger
from signoff.pipeline.graph import Graph, Node
from signoff.stateful.key_index import FILE, KeyIndex, waits_for
from signoff.transforms.contract import Step, Transform
from signoff.transforms.dedupe import Remembering
from signoff.transforms.frame import View
from signoff.transforms.row_results import RowResult, result_text

_DECIDED = pa.struct([("ends", pa.bool_()), ("error", pa.string())])
_FIRST: dict[str, Any] = {"ends": None, "error": None}
_NOT_YET = result_text(RowResult.WAITS, "it is not decided yet whether it repeats another event")


class DecidedBefore(Transform):
    """Stands for a step that knows events again, and says what that has decided. Never written by users."""

    step: Remembering
    state: Path
    source: str

    @property
    def drops(self) -> str:  # type: ignore[override]
        """Of the step it stands for."""
        return self.step.drops

    def compile(self, step: Step, view: View) -> Mapping[str | None, View]:
        def repeats(definition: str, _within_s: float) -> Callable[[pa.Array], pa.Array]:
            lookup = _Lookup(self.state, self.source, step.name, definition, self.step.drops)

            def decided(rows: pa.Array) -> pa.Array:  # Spark wants a function, and reads its signature
                return lookup(rows)

            return decided

        return self.step.compile(replace(step, repeats=repeats), view)


def without_claims(part: Graph, source: str) -> Graph:
    """The part of a pipeline, in which no plan of a source takes a key."""

    def exchanged(node: Node) -> Node:
        if not isinstance(node.config, Remembering):
            return node
        kept = {name: getattr(node.config, name) for name in ("input", "inputs", "on_error")}
        config = DecidedBefore(type="", step=node.config, state=part.state, source=source, **kept)
        return replace(node, config=config)

    return replace(part, nodes={name: exchanged(node) for name, node in part.nodes.items()})


@dataclass(frozen=True)
class _Lookup:
    """Executor: as `engine.plan.duplicates` answers, from what is in the index."""

    state: Path
    source: str
    step: str
    definition: str
    drops: str

    def __call__(self, rows: pa.Array) -> pa.Array:
        asked = [(place, row) for place, row in enumerate(rows.to_pylist()) if row is not None]
        answers = [_FIRST] * len(rows)
        if not asked:
            return pa.array(answers, _DECIDED)
        numbers = [row["sequence"] for _, row in asked]
        index = KeyIndex(self.state / FILE, readonly=True)
        try:
            at = self.step, self.definition, self.source
            first = index.remembers_from(*at)
            owned = index.owned(*at, min(numbers), max(numbers) + 1)
            waiting = {
                (each.sequence, each.child): result_text(
                    RowResult.WAITS, waits_for(each.owner, self.definition)
                )
                for each in index.waiting(self.source, numbers)
                if each.step == self.step
            }
        finally:
            index.close()
        with Ledger(self.state / "ledger.db", readonly=True) as ledger:
            settled = _Settled(ledger, self.source)
            for place, row in asked:
                name = row["sequence"], row["child"]
                if name in owned:
                    continue
                if not settled.holds(row["sequence"]):
                    answers[place] = {"ends": False, "error": waiting.get(name, _NOT_YET)}
                elif first is not None and row["sequence"] >= first:
                    answers[place] = {"ends": True, "error": result_text(RowResult.DROPPED, self.drops)}
        return pa.array(answers, _DECIDED)


class _Settled:
    """Which events of a source are settled."""

    def __init__(self, ledger: Ledger, source: str) -> None:
        self._ledger, self._source = ledger, source
        self._upto, self._next = ledger.settled_upto(source), ledger.books(source).next

    def holds(self, sequence: int) -> bool:
        if sequence < self._upto:
            return True
        if sequence >= self._next:
            return False
        batch = self._ledger.batch_of(self._source, sequence)
        return batch is None or sequence not in batch.owed
