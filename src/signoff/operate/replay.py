"""Having dead letters replayed, corrected ones too, and what became of each.

Only the run that is alive replays (`request_replay` leaves the letters to it); the command also does it
itself where no run is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from signoff.engine.replay.verdict import DROPPED
from signoff.ledger import DeadLetter, DeadLetters, Ledger
from signoff.ledger.interrupted_drops import put_back
from signoff.ledger.letter import MOVED
from signoff.operate.letter_choice import Choice
from signoff.operate.letters import obstacles, open_letters, open_of_choice
from signoff.pipeline.graph import Graph

BEING_DROPPED = "it is being dropped"
IN_VAIN = frozenset({"failed_again", "failed_later", "not_replayable"})

Key = tuple[str, str]
"""Event id and stage of a letter."""


@dataclass(frozen=True)
class End:
    """What became of one letter that was to be replayed."""

    event_id: str
    stage: str
    outcome: str
    """delivered, dropped, failed_again, failed_later, not_replayable or waiting; replayed: closed, and
    forgotten how."""
    reason: str


@dataclass(frozen=True)
class ReplayReport:
    """What became of all of them."""

    ends: tuple[End, ...]

    @property
    def counts(self) -> dict[str, int]:
        number = Counter(end.outcome for end in self.ends)
        return {
            "asked": len(self.ends),
            "replayed": sum(number[each] for each in ("delivered", "dropped", "failed_later", "replayed")),
            **{each: number[each] for each in ("delivered", "dropped", "failed_again", "failed_later")},
            **{each: number[each] for each in ("not_replayable", "waiting")},
        }

    def to_json(self) -> dict[str, Any]:
        return {**self.counts, "letters": [asdict(end) for end in self.ends]}


@dataclass(frozen=True)
class Replay:
    """Letters that somebody wants to have replayed."""

    letters: tuple[Key, ...]
    unfit: Mapping[Key, str]
    """Those that are not even tried, and why."""

    @classmethod
    def of(cls, graph: Graph, letters: DeadLetters, chosen: Sequence[DeadLetter]) -> Replay:
        unfit_for = obstacles(graph, letters)
        unfit = {letter.key: why for letter in chosen if (why := unfit_for(letter))}
        unfit |= {letter.key: BEING_DROPPED for letter in chosen if letter.status == "dropping"}
        return cls(tuple(letter.key for letter in chosen), unfit)

    def report(self, letters: DeadLetters) -> ReplayReport:
        """What became of them so far."""
        return ReplayReport(tuple(end_of(letters, key, self.unfit.get(key, "")) for key in self.letters))

    def left(self, letters: DeadLetters) -> int:
        """How many are being replayed, or were handed on and are not settled yet."""
        waiting = letters.keys(("replaying", "handed"))
        return sum(key in waiting for key in self.letters if key not in self.unfit)


@contextmanager
def letters_to_replay(graph: Graph) -> Iterator[DeadLetters]:
    """The dead letters, with those back in their place whose dropping was interrupted."""
    with DeadLetters(graph.state / "dead_letters.db", readonly=not graph.state.exists()) as letters:
        with Ledger(graph.state / "ledger.db", readonly=True) as ledger:
            put_back(ledger, letters)
        yield letters


def request_replay(graph: Graph, asked: Choice) -> Replay:
    """Leave letters to the run, which replays them now if it is alive, or when it is begun."""
    with letters_to_replay(graph) as letters:
        chosen = open_of_choice(graph, letters, asked)
        replay = Replay.of(graph, letters, chosen)
        letters.request_replay([letter for letter in chosen if letter.key not in replay.unfit])
        return replay


def read_replay(graph: Graph, replay: Replay) -> ReplayReport:
    """What became so far of letters that were requested."""
    with open_letters(graph) as letters:
        return replay.report(letters)


def end_of(letters: DeadLetters, key: Key, unfit: str) -> End:
    """What became of a letter; `unfit`: why it was not even tried."""
    if unfit:
        return End(*key, "not_replayable", unfit)
    known = next(iter(letters.get(*key)), None)
    if known is None:  # closed, with so many others that it is history no more
        return End(*key, "replayed", "")
    if known.status == "replaying":
        return End(*key, "waiting", "the run has not come to it yet")
    if known.status == "handed":
        where = ", ".join(known.handed)
        return End(*key, "waiting", f"handed on to {where}, where it is not settled yet")
    if known.status == "dropped":
        return End(*key, "dropped", "by hand, meanwhile")
    if known.status == "dropping":
        return End(*key, "not_replayable", BEING_DROPPED)
    if known.status != "replayed":
        return End(*key, "failed_again", known.reason)
    for outcome, begins in (("failed_later", MOVED), ("dropped", DROPPED)):
        if known.result.startswith(begins):
            return End(*key, outcome, known.result.removeprefix(begins).strip(" :"))
    return End(*key, "delivered", "")
