"""What waits for nodes that are not in the pipeline any more: rows that sinks owe, or have handed on to other
pipelines, and dead letters.

A run makes dead letters of such rows (see `missing`); until it does, and as long as the letters are there,
whoever looks is told: by `run`, `status` and `audit`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from pyroaring import BitMap64

from signoff.engine.division import all_joints, buffers_on_disk
from signoff.engine.joints import buffer_place
from signoff.engine.missing import owed_by_gone
from signoff.engine.replay_batch import replay_name
from signoff.errors import SignoffError, StateError
from signoff.ledger.batches import Answer
from signoff.ledger.dead_letters import DeadLetters, close_letters
from signoff.ledger.ledger import Ledger
from signoff.ledger.letter import DeadLetter
from signoff.ledger.outcome import BUFFER, BatchRange, Outcome, Resolution, RowOutcome, RowRef, Wait
from signoff.link.notes import Handed, LinkNotes
from signoff.pipeline.graph import Graph
from signoff.sinks.pipeline import PipelineSinkConfig

UNHEARD = (
    'handed on to another pipeline by sink "{}", over a link that was taken out of this one; nobody waits '
    "any more for what becomes of it there"
)


@dataclass(frozen=True)
class Gone:
    """What is owed to, or kept for, nodes that are not there."""

    rows: dict[str, int] = field(default_factory=dict)
    """By sink: rows it owes."""
    letters: dict[str, int] = field(default_factory=dict)
    """By stage or source: dead letters that cannot be replayed without it."""
    handed: dict[str, int] = field(default_factory=dict)
    """By sink: events whose rows it has handed on over a link that is not in the pipeline, so that nobody
    hears what becomes of them."""
    unread: str = ""
    """Why it cannot be said whether any are: a link of the pipeline cannot be read."""

    def as_dict(self) -> dict[str, dict[str, int]]:
        """By node that is gone."""
        found: dict[str, dict[str, int]] = {}
        kinds = (("rows", self.rows), ("handed_on", self.handed), ("dead_letters", self.letters))
        for kind, numbers in kinds:
            for name, number in numbers.items():
                found.setdefault(name, {})[kind] = number
        return found

    def sentences(self) -> list[str]:
        """All of it, for people."""
        owed = [
            f'sink "{name}" is not in the pipeline and owes {_rows(number)}: put it back to have them '
            "delivered; a run makes dead letters of them"
            for name, number in self.rows.items()
        ]
        handed = [
            f'sink "{name}" has handed on {_events(number)} to another pipeline, over a link that is not in '
            "this one: put the sink back, with the path it had, to hear what became of them, or stop "
            f"waiting: signoff buffers drop FILE {name}"
            for name, number in self.handed.items()
        ]
        letters = [
            f'{_letters(number)} of "{name}", which is not in the pipeline: put it back and replay them, or '
            "drop them (signoff dead-letters)"
            for name, number in self.letters.items()
        ]
        unread = [f"{self.unread}; nobody can say what waits behind it"] if self.unread else []
        return owed + handed + letters + unread


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
    rows = {name: number for name, number in found.items() if number}
    try:
        return Gone(rows, dict(stuck), _not_heard_of(graph, names, ledger, letters))
    except SignoffError as error:
        return Gone(rows, dict(stuck), unread=str(error))


def give_up_handed(graph: Graph, ledger: Ledger, sink: str) -> int:
    """Stop waiting for answers over a link that the pipeline does not have: what was handed on counts as
    dropped here, with the reason, whatever the other pipeline does with it.

    Only while no run is alive. Returns how many events that settles or leaves to others; may be repeated.
    Raises SignoffError where a link cannot be read.
    """
    given_up = 0
    reason = UNHEARD.format(sink)
    for name, ref, origins in list(_unheard(graph, stage_names(graph), ledger)):
        if name != sink:
            continue
        outcomes = [RowOutcome(RowRef(sequence), sink, Outcome.DROPPED, reason) for sequence in origins]
        answer = Answer(origins, BitMap64(), BitMap64(), outcomes)
        ledger.release(ref.source, ref.start, ref.end, sink, answer)
        given_up += len(origins)
    return given_up


def take_back_letters(graph: Graph, ledger: Ledger, letters: DeadLetters, sink: str) -> int:
    """Store letters again whose replayed rows were handed on over such a link; returns how many."""
    found = [letter for name, letter in _unheard_letters(graph, letters) if name == sink]
    reason = UNHEARD.format(sink)
    close_letters(ledger, letters, [Resolution(*x.key, Outcome.DEAD_LETTERED, reason) for x in found])
    return len(found)


def _not_heard_of(
    graph: Graph, names: Collection[str], ledger: Ledger, letters: DeadLetters
) -> dict[str, int]:
    """By sink: the events that wait for an answer over a link that the pipeline does not have, and letters
    of such. Raises SignoffError where a link cannot be read."""
    found: Counter[str] = Counter()
    for sink, _, origins in _unheard(graph, names, ledger):
        found[sink] += len(origins)
    for sink, _ in _unheard_letters(graph, letters):
        found[sink] += 1
    return {sink: number for sink, number in found.items() if number}


def _unheard_letters(graph: Graph, letters: DeadLetters) -> Iterator[tuple[str, DeadLetter]]:
    """Letters whose replayed rows are behind the link of a sink that is gone, by sink. Raises SignoffError as
    `_unheard`."""
    handed = list(letters.each(statuses=("handed",), brief=True))
    waiting = [(sink, x) for x in handed for sink in x.handed if sink not in graph.nodes]
    if not waiting:
        return
    noted = {(x.sink, x.batch.source, replay_name(x.batch)) for x in _noted(graph) if x.batch.replay}
    for sink, letter in waiting:
        if (sink, letter.source, letter.batch) in noted:
            continue
        if any(now.status == "handed" for now in letters.get(*letter.key)):  # not answered meanwhile
            yield sink, letter


def _unheard(
    graph: Graph, names: Collection[str], ledger: Ledger
) -> Iterator[tuple[str, BatchRange, BitMap64]]:
    """Such events by sink and batch. Raises SignoffError where a link cannot be read."""
    suspects = [
        (source, sink)
        for source, sink in ledger.owing()
        if source in names and "." not in sink and Wait.parse(sink) is None and _may_be_gone(graph, sink)
    ]
    waiting = [
        (sink, batch.ref)
        for source, sink in suspects
        for batch in ledger.open_batches(source)
        if sink in batch.sinks and batch.sinks[sink].handed
    ]
    noted = {(x.sink, BatchRange(x.batch.source, x.batch.start, x.batch.end))
             for x in (_noted(graph) if waiting else ())}  # fmt: skip
    for sink, ref in waiting:
        known = ledger.batch(ref.source, ref.start, ref.end)  # it may have been answered meanwhile
        if (sink, ref) not in noted and known is not None and sink in known.sinks:
            yield sink, ref, known.owed & (known.sinks[sink].handed or BitMap64())


def _may_be_gone(graph: Graph, sink: str) -> bool:
    """Whether a sink may have handed rows on over a link that the pipeline does not have."""
    return sink not in graph.nodes or isinstance(graph.nodes[sink].config, PipelineSinkConfig)


def _noted(graph: Graph) -> list[Handed]:
    """What the links of a pipeline hold. Raises SignoffError if one cannot be read, or is not there: its disk
    may not be mounted, and then it holds more than nothing."""
    paths = [buffer_place(graph, name + BUFFER).database for name in buffers_on_disk(graph)]
    for name, node in graph.sinks.items():
        if isinstance(node.config, PipelineSinkConfig):
            path = node.config.place(graph.base).database
            if not path.exists():
                raise StateError(
                    f'the link of sink "{name}" cannot be read: there is no {path}; is its disk mounted? '
                    "A run makes the link if it is a new one"
                )
            paths.append(path)
    found: list[Handed] = []
    for path in paths:
        notes = LinkNotes(path, readonly=True)
        try:
            found += notes.each()
        finally:
            notes.close()
    return found


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


def _events(number: int) -> str:
    return f"rows of {number} event{'' if number == 1 else 's'}"


def _letters(number: int) -> str:
    return "1 dead letter is" if number == 1 else f"{number} dead letters are"
