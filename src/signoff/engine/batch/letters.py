"""Storing dead letters on the driver: with the event as the log holds it, before anything is settled."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from pyroaring import BitMap64

from signoff.engine.batch.interrupts import Interrupts
from signoff.ledger.dead_letters import DeadLetters
from signoff.ledger.letter import DeadLetter
from signoff.ledger.outcome import EventId, RowOutcome, is_united
from signoff.log.reader import LogReader

logger = logging.getLogger(__name__)

_CHUNK = 5_000
_RETRY_S = 1.0


class LetterStore:
    """The dead letters of one source."""

    def __init__(self, source: str, letters: DeadLetters, log: LogReader) -> None:
        self.source, self.letters, self.log = source, letters, log

    def store(self, dead: Sequence[RowOutcome], control: Interrupts) -> None:
        """Store all of them durably; while the store fails, wait: the source is held back, not lied to."""
        for begin in range(0, len(dead), _CHUNK):
            chunk = dead[begin : begin + _CHUNK]
            events = self.log.lookup({outcome.row.sequence for outcome in chunk})
            letters = [letter_of(self.source, outcome, events[outcome.row.sequence]) for outcome in chunk]
            while not self._add(letters):
                control.wait(_RETRY_S)

    def reason(self, source: str, sequence: int) -> str:
        """Why an event that is withheld from reading is a dead letter."""
        found = self.letters.get(str(EventId(source, sequence)), source)
        return found[0].reason if found else "the plan fails on this event"

    def _add(self, letters: Sequence[DeadLetter]) -> bool:
        try:
            self.letters.add(letters)
        except Exception as error:  # noqa: BLE001 - full, locked, damaged: none of it may lose a letter
            logger.error("cannot store dead letters; nothing is acknowledged until that works: %s", error)
            return False
        return True


def to_store(dead: Sequence[RowOutcome], owed: BitMap64) -> list[RowOutcome]:
    """Those of the dead rows that are news. Of an event that is settled nothing more is recorded: a letter
    that was closed stays closed. But a row of several events can only be replayed from all of them."""
    rows = {(o.stage, o.row.child) for o in dead if o.row.sequence in owed and is_united(o.row.child)}
    return [o for o in dead if o.row.sequence in owed or (o.stage, o.row.child) in rows]


def letter_of(source: str, outcome: RowOutcome, event: Mapping[str, Any]) -> DeadLetter:
    """The dead letter of one row, with its whole event."""
    received, error = event["received_at"], event.get("error")
    return DeadLetter(
        event_id=str(EventId(source, outcome.row.sequence, outcome.row.child)),
        stage=outcome.stage,
        reason=outcome.reason,
        payload=event["payload"],
        headers=dict(event["headers"] or {}),
        received_at=None if received is None else received.timestamp(),
        message_id=event["message_id"],
        # What a source could not read is not what was sent: of too large a payload there is the beginning,
        # of a damaged file its last readable piece.
        incomplete=f"its source could not read it whole: {error}" if error else "",
    )
