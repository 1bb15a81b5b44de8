"""What became of replayed letters whose rows were handed on to another log. Runs on the driver.

A letter is not delivered because its row is in a buffer: the sink behind it may refuse the row, or drop it.
So it stays open (`handed`) until the row is settled there, and then

    delivered there                      the letter is closed as delivered
    a dead letter there                  that one stands for it from now on, in front of the log as well
    refused, there or by the reader      a letter of the sink that had handed the row on stands for it from
                                         now on: other places behind the letter's stage have the row
    dropped there                        the letter is closed as dropped, and says where

A letter of that sink itself, when its row is refused, is stored again. All of it may be repeated: a kill at
any moment leaves a letter that is told once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from signoff.engine.replay.batch_name import replay_name
from signoff.engine.replay.verdict import DELIVERED, DROPPED
from signoff.ledger.batches import HandedOnOutcome
from signoff.ledger.dead_letters import DeadLetters, close_letters
from signoff.ledger.ledger import Ledger
from signoff.ledger.letter import MOVED, OPEN, DeadLetter
from signoff.ledger.outcome import EventId, Outcome, Resolution, RowOutcome, RowRef, is_united
from signoff.link.notes import Handed
from signoff.stateful.window_sinks import STATE


def letters_of(letters: DeadLetters, handed: Handed) -> list[DeadLetter]:
    """The letters whose replay is in a link's log as this; [] if it is of no replay."""
    if not handed.batch.replay:
        return []
    return letters.of_batch(handed.batch.source, replay_name(handed.batch))


def tell_letters(
    ledger: Ledger,
    letters: DeadLetters,
    of_batch: Sequence[DeadLetter],
    handed: Handed,
    answer: HandedOnOutcome,
    *,
    outside: bool,
) -> bool:
    """Tell letters what is known of their rows. Returns whether any of them still needs to know more."""
    waiting = False
    for letter in of_batch:
        if letter.status in ("stored", "replaying"):
            waiting = True  # killed before it was noted as handed on: it is replayed again, as the same batch
        elif letter.status == "handed" and handed.sink in letter.handed:
            if letter.sequence in answer.still:
                waiting = True
            else:
                _Told(ledger, letters, letter, handed.sink, answer, outside).tell()
    return waiting


def give_back(ledger: Ledger, letters: DeadLetters, letter: DeadLetter, sink: str, reason: str) -> None:
    """Nobody will say what becomes of a replayed letter's rows behind a sink: a letter of the sink stands for
    them from now on. May be repeated."""
    for whole in letters.get(*letter.key):
        if whole.status != "handed" or sink not in whole.handed:
            continue
        if whole.stage == sink:
            close_letters(ledger, letters, [Resolution(*whole.key, Outcome.DEAD_LETTERED, reason)])
            continue
        further = [_of_sink(whole, sink, whole.event_id, reason)]
        result = f'{MOVED}: "{sink}": {reason}'
        if whole.handed != (sink,):
            close_letters(ledger, letters, [], further)
            letters.take_back(whole, sink, result)
            continue
        outcome = Outcome.DELIVERED if whole.result.startswith(DELIVERED) else Outcome.DROPPED
        close_letters(ledger, letters, [_resolution(whole, outcome, result)], further)


def _of_sink(letter: DeadLetter, sink: str, event_id: str, reason: str) -> DeadLetter:
    """The letter of a sink for a row that was made from another letter's, and that others have."""
    before = f'at "{letter.stage}": {letter.first_reason or letter.reason}'
    return replace(
        letter, event_id=event_id, stage=sink, reason=reason, at=0.0, batch="", result="", first_reason=before
    )


class _Told:
    """One letter, and what became of its rows behind one sink."""

    def __init__(
        self,
        ledger: Ledger,
        letters: DeadLetters,
        letter: DeadLetter,
        sink: str,
        answer: HandedOnOutcome,
        outside: bool,
    ) -> None:
        self._ledger, self._letters, self._letter, self._sink = ledger, letters, letter, sink
        row = letter.event.row
        self._mine = [one for one in answer.outcomes if _is_of(row, one.row)]
        self._refused = [
            one for one in self._mine
            if one.outcome == Outcome.REFUSED or (outside and one.outcome == Outcome.DEAD_LETTERED)
        ]  # fmt: skip
        self._dead = [
            one for one in self._mine
            if one.outcome == Outcome.DEAD_LETTERED and not outside and self._is_open(one)
        ]  # fmt: skip
        named = {one.row for one in self._mine}
        self._delivered = letter.result.startswith(DELIVERED) or (
            letter.sequence in answer.delivered and (not named or row not in named)
        )

    def _is_open(self, one: RowOutcome) -> bool:
        return any(letter.status in OPEN for letter in self._letters.get(one.letter, one.stage))

    def tell(self) -> None:
        letter = self._letter
        if self._refused and letter.stage == self._sink:
            reason = self._why(self._refused[0])
            self._close([_resolution(letter, Outcome.DEAD_LETTERED, reason)])
            return
        new = self._new()
        result = self._result()
        if [name for name in letter.handed if name != self._sink]:
            self._letters.take_back(letter, self._sink, result)
            return
        outcome = Outcome.DELIVERED if self._delivered else Outcome.DROPPED
        closed = _resolution(letter, outcome, result)
        if letter.key in {(each.event_id, each.stage) for each in new}:
            self._letters.resolve_all([closed])  # in the ledger another letter stands for the row now
        else:
            self._close([closed])

    def _new(self) -> list[Resolution]:
        """Account for the letters that stand for it from now on: those of the part behind the log, and those
        of the sink for what was refused, which are stored before."""
        further = self._of_refused()
        self._letters.add(further)
        new = [Resolution(each.event_id, each.stage, Outcome.DEAD_LETTERED, each.reason) for each in further]
        new += [
            Resolution(self._id(one), one.stage, Outcome.DEAD_LETTERED, one.reason, one.letter)
            for one in self._dead
        ]
        if new:
            self._ledger.resolve(new)
        return new

    def _of_refused(self) -> list[DeadLetter]:
        """Letters of the sink for the rows that were refused behind it."""
        refused = {self._id(one): self._why(one) for one in self._refused}
        return [_of_sink(self._letter, self._sink, event_id, reason) for event_id, reason in refused.items()]

    def _id(self, one: RowOutcome) -> str:
        """Of the row as it came to the sink. What a state is given is made of several, and has no name."""
        if self._sink.endswith(STATE):
            return self._letter.event_id
        return str(EventId(self._letter.source, one.row.sequence, one.row.child))

    @staticmethod
    def _why(one: RowOutcome) -> str:
        return f'"{one.stage}" refused it: {one.reason}'

    def _result(self) -> str:
        """What is known of it now; that it failed somewhere is not taken back by what others have taken."""
        for one in (*self._refused, *self._dead):
            return f'{MOVED}: "{one.stage}": {one.reason}'
        if self._letter.result.startswith(MOVED):
            return self._letter.result
        if self._delivered:
            return DELIVERED
        why = next((f' by "{one.stage}" ({one.reason})' for one in self._mine), ": nothing of it was left")
        return self._letter.result or DROPPED + why

    def _close(self, resolutions: Sequence[Resolution]) -> None:
        self._ledger.resolve(resolutions)
        self._letters.resolve_all(resolutions)


def _is_of(row: RowRef, other: RowRef) -> bool:
    """Whether a row behind a log was made of a letter's row. One that was united on the way has a name that
    does not say so, but of the letter's event only what was made of the letter's row was replayed."""
    if row.holds(other) or other.holds(row):
        return True
    return row.sequence == other.sequence and is_united(other.child) and not is_united(row.child)


def _resolution(letter: DeadLetter, outcome: Outcome, reason: str) -> Resolution:
    return Resolution(letter.event_id, letter.stage, outcome, reason, moved=reason.startswith(MOVED))
