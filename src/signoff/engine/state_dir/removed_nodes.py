"""What waits for nodes that are not in the pipeline any more: rows that sinks owe, or have handed on to other
pipelines, and dead letters.

A run makes dead letters of such rows (see `engine.batch.missing_rows`); until it does, and as long as the
letters are there, `run`, `status` and `audit` say so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from pyroaring import BitMap64

from signoff.batch import BatchRef
from signoff.engine.batch.missing_rows import owed_by_gone
from signoff.engine.replay.batch_name import replay_name
from signoff.engine.split.boundaries import buffer_place
from signoff.engine.split.division import all_boundaries, buffers_on_disk
from signoff.errors import SignoffError, StateError
from signoff.ledger.batch_state import Debtor, sink_of
from signoff.ledger.batches import HandedOnOutcome
from signoff.ledger.dead_letters import DeadLetters, close_letters
from signoff.ledger.ledger import Ledger
from signoff.ledger.letter import DeadLetter
from signoff.ledger.outcome import BUFFER, Outcome, Resolution, RowOutcome, RowRef
from signoff.link.job_sink import JobSinkConfig, invoker_place
from signoff.link.notes import Handed, LinkNotes
from signoff.link.sink import PipelineSinkConfig
from signoff.pipeline.graph import Graph

UNANSWERED = (
    'handed on to another pipeline by sink "{}", over a link that was removed from this one; its outcome '
    "there is no longer reported back"
)


@dataclass(frozen=True)
class RemovedNodes:
    """What is owed to, or kept for, nodes that are not there."""

    rows: dict[str, int] = field(default_factory=dict)
    """By sink: rows it owes."""
    letters: dict[str, int] = field(default_factory=dict)
    """By stage or source: dead letters that cannot be replayed without it."""
    handed: dict[str, int] = field(default_factory=dict)
    """By sink: events whose rows it has handed on over a link that is not in the pipeline, so that nobody
    hears what becomes of them."""
    unheard: dict[str, int] = field(default_factory=dict)
    """By sink that is there: replayed letters that wait for what becomes of their rows, of which its log or
    link knows nothing."""
    unread: str = ""
    """Why it cannot be said whether any are: a link of the pipeline cannot be read."""

    def as_dict(self) -> dict[str, dict[str, int]]:
        """By node that is gone."""
        found: dict[str, dict[str, int]] = {}
        kinds = (
            ("rows", self.rows), ("handed_on", self.handed), ("dead_letters", self.letters),
            ("unheard", self.unheard),
        )  # fmt: skip
        for kind, numbers in kinds:
            for name, number in numbers.items():
                found.setdefault(name, {})[kind] = number
        return found

    def sentences(self) -> list[str]:
        """All of it, for people."""
        owed = [
            f'sink "{name}" is not in the pipeline and owes {_rows(number)}: put it back to have them '
            "delivered; a run makes dead letters of those that do not come to a new sink in its place"
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
        unheard = [
            f'{_letters(number)} waiting for what becomes of a replayed row behind sink "{name}", where '
            "nothing is known of it; the next run stores it again, as one of that sink"
            for name, number in self.unheard.items()
        ]
        unread = [f"{self.unread}; nobody can say what waits behind it"] if self.unread else []
        return owed + handed + letters + unheard + unread


def what_is_gone(graph: Graph, ledger: Ledger, letters: DeadLetters) -> RemovedNodes:
    """Look at a state directory. Changes nothing."""
    names, found = stage_names(graph), Counter[str]()
    for source, who in ledger.owing():
        if _is_gone(graph, names, source, sink_of(who)):
            found[sink_of(who)] += _owed(ledger, source, who)
    stuck: Counter[str] = Counter()
    for source, stage, number in letters.by_stage():
        if (missing := missing_node(names, source, stage)) is not None:
            stuck[missing] += number
    rows = {name: number for name, number in found.items() if number}
    try:
        handed = _waiting_for_answers(graph, names, ledger, letters)
        unheard = Counter(sink for sink, _ in _unanswered_letters(graph, letters, gone=False))
        return RemovedNodes(rows, dict(stuck), handed, dict(unheard))
    except SignoffError as error:
        return RemovedNodes(rows, dict(stuck), unread=str(error))


def give_up_handed(graph: Graph, ledger: Ledger, sink: str) -> int:
    """Stop waiting for answers over a link that the pipeline does not have: what was handed on counts as
    dropped here, with the reason, whatever the other pipeline does with it.

    Only while no run is alive. Returns how many events that settles or leaves to others; may be repeated.
    Raises SignoffError where a link cannot be read.
    """
    given_up = 0
    reason = UNANSWERED.format(sink)
    for name, ref, origins in list(_unanswered(graph, stage_names(graph), ledger)):
        if name != sink:
            continue
        outcomes = [RowOutcome(RowRef(sequence), sink, Outcome.DROPPED, reason) for sequence in origins]
        answer = HandedOnOutcome(origins, BitMap64(), BitMap64(), outcomes)
        ledger.release(ref.source, ref.start, ref.end, sink, answer)
        given_up += len(origins)
    return given_up


def take_back_letters(graph: Graph, ledger: Ledger, letters: DeadLetters, sink: str) -> int:
    """Store letters again whose replayed rows were handed on over such a link; returns how many. They stay
    letters of their stage, since one of a sink that is gone could not be replayed."""
    found = [letter for name, letter in _unanswered_letters(graph, letters) if name == sink]
    reason = UNANSWERED.format(sink)
    close_letters(ledger, letters, [Resolution(*x.key, Outcome.DEAD_LETTERED, reason) for x in found])
    return len(found)


def _waiting_for_answers(
    graph: Graph, names: Collection[str], ledger: Ledger, letters: DeadLetters
) -> dict[str, int]:
    """By sink: the events that wait for an answer over a link that the pipeline does not have, and letters
    of such. Raises SignoffError where a link cannot be read."""
    found: Counter[str] = Counter()
    for sink, _, origins in _unanswered(graph, names, ledger):
        found[sink] += len(origins)
    for sink, _ in _unanswered_letters(graph, letters):
        found[sink] += 1
    return {sink: number for sink, number in found.items() if number}


def _unanswered_letters(
    graph: Graph, letters: DeadLetters, *, gone: bool = True
) -> Iterator[tuple[str, DeadLetter]]:
    """Letters whose replayed rows are behind the link of a sink that is gone, or that is there and knows
    nothing of them, by sink. Raises SignoffError as `_unanswered`."""
    handed = list(letters.each(statuses=("handed",), brief=True))
    waiting = [(sink, x) for x in handed for sink in x.handed if (sink not in graph.nodes) == gone]
    if not waiting:
        return
    noted = {(x.sink, x.batch.source, replay_name(x.batch)) for x in _noted(graph) if x.batch.replay}
    for sink, letter in waiting:
        if (sink, letter.source, letter.batch) in noted:
            continue
        if any(now.status == "handed" for now in letters.get(*letter.key)):  # not answered meanwhile
            yield sink, letter


def _unanswered(
    graph: Graph, names: Collection[str], ledger: Ledger
) -> Iterator[tuple[str, BatchRef, BitMap64]]:
    """Such events by sink and batch. Raises SignoffError where a link cannot be read."""
    suspects = [
        (source, sink)
        for source, sink in ledger.owing()
        if source in names and isinstance(sink, str) and "." not in sink and _may_be_gone(graph, sink)
    ]
    waiting = [
        (sink, batch.ref)
        for source, sink in suspects
        for batch in ledger.open_batches(source)
        if sink in batch.sinks and batch.sinks[sink].handed_on
    ]
    noted = {(x.sink, replace(x.batch, replay=0))
             for x in (_noted(graph) if waiting else ())}  # fmt: skip
    for sink, ref in waiting:
        known = ledger.batch(ref.source, ref.start, ref.end)  # it may have been answered meanwhile
        if (sink, ref) not in noted and known is not None and sink in known.sinks:
            yield sink, ref, known.owed & (known.sinks[sink].handed_on or BitMap64())


def _may_be_gone(graph: Graph, sink: str) -> bool:
    """Whether a sink may have handed rows on over a link that the pipeline does not have."""
    if sink not in graph.nodes:
        return True
    # One that has started jobs may be of another type by now: its requests are still there.
    config, asked = graph.nodes[sink].config, invoker_place(graph.state, sink).database
    return isinstance(config, PipelineSinkConfig | JobSinkConfig) or asked.exists()


def _noted(graph: Graph) -> list[Handed]:
    """What the links of a pipeline hold. Raises SignoffError if one cannot be read, or is not there: its disk
    may not be mounted, and then it holds more than nothing."""
    paths = [buffer_place(graph, name + BUFFER).database for name in buffers_on_disk(graph)]
    asking = [name for name, node in graph.sinks.items() if isinstance(node.config, JobSinkConfig)]
    paths += [path for name in asking if (path := invoker_place(graph.state, name).database).exists()]
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
    return {boundary.source for _, boundary in all_boundaries(graph)} | graph.nodes.keys()


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


def _owed(ledger: Ledger, source: str, who: Debtor) -> int:
    return sum(
        len(owed_by_gone(who, state, batch, BitMap64()))
        for batch in ledger.open_batches(source)
        if (state := batch.debtors.get(who)) is not None and state.to_ask
    )


def _rows(number: int) -> str:
    return f"{number} row{'' if number == 1 else 's'}"


def _events(number: int) -> str:
    return f"rows of {number} event{'' if number == 1 else 's'}"


def _letters(number: int) -> str:
    return "1 dead letter is" if number == 1 else f"{number} dead letters are"
