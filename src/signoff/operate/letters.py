"""The dead letters of a pipeline, each with what stands in the way of its replay."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from signoff.clock import when
from signoff.engine.state_dir.removed_nodes import obstacle, stage_names
from signoff.ledger import DeadLetter, DeadLetters, Ledger, RunLock, drop_letters
from signoff.ledger.explain import as_text
from signoff.ledger.letter import OPEN, Status
from signoff.ledger.resubmission import why_not
from signoff.operate.letter_choice import Choice
from signoff.pipeline.graph import Graph

EVERY: tuple[Status, ...] = (*OPEN, "replayed", "dropped")


@dataclass(frozen=True)
class StoredLetter:
    """A letter as it is listed and shown."""

    letter: DeadLetter
    why_not: str
    """Why it cannot be replayed as things are; '' if it can be."""

    def to_json(self) -> dict[str, Any]:
        letter = self.letter
        payload, encoding = as_text(letter.payload)
        fields: dict[str, Any] = {
            "event_id": letter.event_id,
            "source": letter.source,
            "stage": letter.stage,
            "reason": letter.reason,
            "at": when(letter.at),
            "received_at": when(letter.received_at),
            "attempts": letter.attempts,
            "status": letter.status,
            "replayable": not self.why_not,
            "message_id": letter.message_id,
            "headers": dict(letter.headers),
            "payload": payload,
        }
        if self.why_not:
            fields["not_replayable"] = self.why_not
        if letter.first_reason:
            fields["first_reason"] = letter.first_reason
        if letter.result:
            fields["replay"] = letter.result
        if letter.handed:
            fields["waits_behind"] = list(letter.handed)
        return fields if encoding == "utf-8" else {**fields, "payload_encoding": encoding}


@dataclass(frozen=True)
class LetterGroup:
    """The open letters of one stage with one reason."""

    stage: str
    reason: str
    letters: int

    def to_json(self) -> dict[str, Any]:
        return {"stage": self.stage, "reason": self.reason, "letters": self.letters}


@dataclass(frozen=True)
class Dropped:
    """What became of letters that were to be dropped."""

    asked: int
    dropped: int

    def to_json(self) -> dict[str, int]:
        return {"asked": self.asked, "dropped": self.dropped}


def find_letters(
    graph: Graph,
    asked: Choice,
    *,
    statuses: tuple[Status, ...] = OPEN,
    limit: int | None = None,
    brief: bool = False,
) -> list[StoredLetter]:
    """Letters, the oldest first. `brief` leaves payload and headers empty."""
    with open_letters(graph) as letters:
        unfit_for = obstacles(graph, letters)
        found = asked.letters(graph, letters, statuses=statuses, limit=limit, brief=brief)
        return [StoredLetter(letter, unfit_for(letter)) for letter in found]


def each_letter(
    graph: Graph,
    asked: Choice,
    *,
    statuses: tuple[Status, ...] = OPEN,
    limit: int | None = None,
    brief: bool = False,
) -> Iterator[StoredLetter]:
    """The same, letter by letter where that can be: there may be more than fit into memory."""
    with open_letters(graph) as letters:
        unfit_for = obstacles(graph, letters)
        found = (
            asked.letters(graph, letters, statuses=statuses, limit=limit, brief=brief)
            if asked.event_ids or asked.where is not None
            else letters.each(asked.chosen, statuses=statuses, limit=limit, brief=brief)
        )
        for letter in found:
            yield StoredLetter(letter, unfit_for(letter))


def group_letters(graph: Graph) -> list[LetterGroup]:
    """The open letters by stage and reason, the most frequent first."""
    with open_letters(graph) as letters:
        return [LetterGroup(stage, reason, number) for (stage, reason), number in letters.counts().items()]


def drop_chosen(graph: Graph, asked: Choice) -> Dropped:
    """Discard letters: their events count as dropped, unless part of them was delivered.

    A letter that a living run is about to replay is left alone.
    """
    state = graph.state
    readonly = not state.exists()
    with (
        DeadLetters(state / "dead_letters.db", readonly=readonly) as letters,
        Ledger(state / "ledger.db", readonly=readonly) as ledger,
    ):
        chosen: Sequence[DeadLetter] = open_of_choice(graph, letters, asked)
        if chosen and RunLock(state).held_by() is None:
            letters.take_for_drop(chosen)
            chosen = [replace(letter, status="stored") for letter in chosen]
        return Dropped(len(chosen), drop_letters(ledger, letters, chosen))


def open_letters(graph: Graph) -> DeadLetters:
    """To be read, and closed."""
    return DeadLetters(graph.state / "dead_letters.db", readonly=True)


def open_of_choice(graph: Graph, letters: DeadLetters, asked: Choice) -> list[DeadLetter]:
    """The open letters that were asked for, with the others of rows that were made of several events."""
    return letters.whole(asked.letters(graph, letters, brief=True))


def obstacles(graph: Graph, letters: DeadLetters) -> Callable[[DeadLetter], str]:
    """Says of a letter why it cannot be replayed as things are; '' if it can be."""
    from signoff.jobs.letters import run_obstacles

    names, cut, of_run = stage_names(graph), letters.cut_rows(), run_obstacles(graph.state)
    return lambda letter: _why_not_replayable(names, letter, cut) or of_run(letter)


def _why_not_replayable(
    names: Collection[str], letter: DeadLetter, cut: Mapping[tuple[str, str, str], str]
) -> str:
    """Why a letter cannot be replayed, and whether a corrected event can take its place; '' if it can be
    replayed. `names`, `cut`: see `obstacle`."""
    if not (why := obstacle(names, letter, cut)):
        return ""
    whole = replace(letter, incomplete="")
    if why_not(letter) or obstacle(names, whole, cut):
        return why
    return f"{why}; but it can be resubmitted, corrected: signoff dead-letters resubmit"
