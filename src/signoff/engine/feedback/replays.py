"""What became of replayed letters whose rows were handed on to another log. Runs on the driver.

A letter is not delivered because its row is in a buffer: the sink behind it may refuse the row, or drop it.
So it stays open (`handed`) until the row is settled there, and then

    delivered there                      the letter is closed as delivered
    a dead letter there                  that one stands for it from now on, in front of the log as well
    refused, there or by the reader      it is stored again, with the reason: nobody else keeps the row
    dropped there                        the letter is closed as dropped, and says where

All of it may be repeated: a kill at any moment leaves a letter that is told once more.
"""

from __future__ import annotations

from collections.abc import Sequence

from signoff.engine.replay.batch import replay_name
from signoff.engine.replay.verdict import DELIVERED, DROPPED
from signoff.ledger.batches import HandedOnOutcome
from signoff.ledger.dead_letters import DeadLetters
from signoff.ledger.ledger import Ledger
from signoff.ledger.letter import MOVED, OPEN, DeadLetter
from signoff.ledger.outcome import EventId, Outcome, Resolution, RowOutcome
from signoff.link.notes import Handed


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
        self._mine = [one for one in answer.outcomes if row.holds(one.row) or one.row.holds(row)]
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
        if self._refused:
            one = self._refused[0]
            self._close(
                [_resolution(letter, Outcome.DEAD_LETTERED, f'"{one.stage}" refused it: {one.reason}')]
            )
            return
        result = self._result()
        others = [name for name in letter.handed if name != self._sink]
        new = [
            Resolution(
                str(EventId(letter.source, one.row.sequence, one.row.child)),
                one.stage, Outcome.DEAD_LETTERED, one.reason, one.letter,
            )
            for one in self._dead
        ]  # fmt: skip
        if new:
            self._ledger.resolve(new)
        if others:
            self._letters.take_back(letter, self._sink, result)
            return
        outcome = Outcome.DELIVERED if self._delivered else Outcome.DROPPED
        closed = _resolution(letter, outcome, result)
        if letter.key in {(each.event_id, each.stage) for each in new}:
            self._letters.resolve_all([closed])  # in the ledger another letter stands for the row now
        else:
            self._close([closed])

    def _result(self) -> str:
        if self._dead:
            return f'{MOVED}: "{self._dead[0].stage}": {self._dead[0].reason}'
        if self._delivered:
            return DELIVERED
        why = next((f' by "{one.stage}" ({one.reason})' for one in self._mine), ": nothing of it was left")
        return self._letter.result or DROPPED + why

    def _close(self, resolutions: Sequence[Resolution]) -> None:
        self._ledger.resolve(resolutions)
        self._letters.resolve_all(resolutions)


def _resolution(letter: DeadLetter, outcome: Outcome, reason: str) -> Resolution:
    return Resolution(letter.event_id, letter.stage, outcome, reason, moved=reason.startswith(MOVED))
