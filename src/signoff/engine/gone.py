"""What waits for nodes that are not in the pipeline any more: rows that sinks owe, and dead letters.

A run makes dead letters of such rows (see `missing`); until it does, and as long as the letters are there,
whoever looks is told: by `run`, `status` and `audit`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from pyroaring import BitMap64

from signoff.engine.division import all_joints
from signoff.engine.missing import owed_by_gone
from signoff.ledger.dead_letters import DeadLetter, DeadLetters
from signoff.ledger.ledger import Ledger
from signoff.ledger.outcome import BUFFER, Wait
from signoff.pipeline.graph import Graph


@dataclass(frozen=True)
class Gone:
    """What is owed to, or kept for, nodes that are not there."""

    rows: dict[str, int] = field(default_factory=dict)
    """By sink: rows it owes."""
    letters: dict[str, int] = field(default_factory=dict)
    """By stage or source: dead letters that cannot be replayed without it."""

    def as_dict(self) -> dict[str, dict[str, int]]:
        """By node that is gone."""
        found: dict[str, dict[str, int]] = {}
        for kind, numbers in (("rows", self.rows), ("dead_letters", self.letters)):
            for name, number in numbers.items():
                found.setdefault(name, {})[kind] = number
        return found

    def sentences(self) -> list[str]:
        """All of it, for people."""
        return [
            f'sink "{name}" is not in the pipeline and owes {_rows(number)}: put it back to have them '
            "delivered; a run makes dead letters of them"
            for name, number in self.rows.items()
        ] + [
            f'{_letters(number)} of "{name}", which is not in the pipeline: put it back and replay them, or '
            "drop them (signoff dead-letters)"
            for name, number in self.letters.items()
        ]


def what_is_gone(graph: Graph, ledger: Ledger, letters: DeadLetters) -> Gone:
    """Look at a state directory. Changes nothing."""
    names, found = stage_names(graph), Counter[str]()
    for source, sink in ledger.owing():
        if _is_gone(graph, names, source, _sink_of(sink)):
            found[_sink_of(sink)] += _owed(ledger, source, sink)
    stuck: Counter[str] = Counter()
    for source, stage, number in letters.by_stage():
        if (missing := missing_node(names, source, stage)) is not None:
            stuck[missing] += number
    return Gone({name: number for name, number in found.items() if number}, dict(stuck))


def stage_names(graph: Graph) -> set[str]:
    """What sources and stages of letters may be called: the nodes, and the logs between them."""
    return {joint.source for _, joint in all_joints(graph)} | graph.nodes.keys()


def missing_node(names: Collection[str], source: str, stage: str) -> str | None:
    """What a letter needs to be replayed, and is not in the pipeline."""
    if stage.partition(".")[0] not in names:  # what is behind the dot is a part of a node
        return stage
    return source if source not in names else None


def obstacle(names: Collection[str], letter: DeadLetter, cut: Mapping[tuple[str, str, str], str]) -> str:
    """Why a letter cannot be replayed as things are; '' if it can. `cut`: see `DeadLetters.cut_rows`."""
    if why := letter.incomplete or cut.get((letter.source, letter.stage, letter.child), ""):
        return why
    if (missing := missing_node(names, letter.source, letter.stage)) is None:
        return ""
    kind = "stage" if missing == letter.stage else "source"
    return f'its {kind} "{missing}" is not in the pipeline any more; put it back, or drop the letter'


def _is_gone(graph: Graph, names: Collection[str], source: str, sink: str) -> bool:
    """Whether nobody will give a sink what it owes of a source; a source that is gone is named elsewhere."""
    if source not in names or source.endswith(BUFFER):
        return source in names and sink.partition(".")[0] not in names
    node = sink.partition(".")[0]
    return node not in names or node not in graph.downstream(source)


def _owed(ledger: Ledger, source: str, sink: str) -> int:
    return sum(
        len(owed_by_gone(sink, batch.sinks[sink], batch, BitMap64()))
        for batch in ledger.open_batches(source)
        if sink in batch.sinks and batch.sinks[sink].to_ask
    )


def _sink_of(name: str) -> str:
    wait = Wait.parse(name)
    return name if wait is None else wait.sink


def _rows(number: int) -> str:
    return f"{number} row{'' if number == 1 else 's'}"


def _letters(number: int) -> str:
    return "1 dead letter is" if number == 1 else f"{number} dead letters are"
