"""One dead letter: what is kept of an event that could not be computed or delivered."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from signoff.ledger.outcome import BUFFER, OTHERS, EventId, edition

Status = Literal["stored", "replaying", "handed", "dropping", "replayed", "dropped"]
OPEN: tuple[Status, ...] = ("stored", "replaying", "handed", "dropping")
"""The letters that are still of concern; the others are history."""


RESUBMITTED = "resubmitted as"
"""How the result of a letter begins that a corrected event has taken the place of."""
MOVED = "failed at a later stage"
"""How the result of a letter begins whose replay has left another letter."""
MASKED = "a secret is masked in its header"
"""How `incomplete` says that a header is not kept as it came."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One stored row. `stage` is the transform or sink that could not take it."""

    event_id: str
    stage: str
    reason: str
    payload: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    received_at: float | None = None
    """Seconds since the epoch."""
    at: float = 0.0
    """When it became a dead letter; 0 takes the time of `add`."""
    attempts: int = 1
    """How often it was tried: once, and once for each replay that failed."""
    status: Status = "stored"
    message_id: str | None = None
    """The id the event came with; of a row from a buffer, the id it has at its sink."""
    incomplete: str = ""
    """Why this is not the whole event, and cannot be replayed; '' if it can."""
    result: str = ""
    """How the last replay ended: `delivered`, or where and why it was dropped. While it is handed on: what is
    known so far."""
    batch: str = ""
    """The name of the batch under which its rows are, or were, replayed."""
    handed: tuple[str, ...] = ()
    """The sinks behind which its rows are in another log, and not settled."""
    first_reason: str = ""
    """Why it failed the first time, if a replay has failed for another reason since, or at another stage."""

    @property
    def event(self) -> EventId:
        return EventId.parse(self.event_id)

    @property
    def source(self) -> str:
        return self.event.source

    @property
    def sequence(self) -> int:
        return self.event.sequence

    @property
    def child(self) -> str:
        return self.event.child

    @property
    def edition(self) -> str:
        """`+1` for the first corrected event resubmitted for this one; '' for the event as it came."""
        return edition(self.child)

    @property
    def resubmitted(self) -> bool:
        """Whether it was closed because a corrected event took its place."""
        return self.result.startswith(RESUBMITTED)

    @property
    def key(self) -> tuple[str, str]:
        return self.event_id, self.stage

    @property
    def made_from(self) -> tuple[str, ...]:
        """Of a row from a buffer: its ids in the account of the source whose events it was made from."""
        if not self.source.endswith(BUFFER) or self.message_id is None:
            return ()
        first = EventId.parse(self.message_id)
        others = [int(number) for number in self.headers.get(OTHERS, "").split(",") if number]
        return self.message_id, *(str(EventId(first.source, number, first.child)) for number in others)


def from_row(row: sqlite3.Row) -> DeadLetter:
    return DeadLetter(
        event_id=row["event_id"], stage=row["stage"], reason=row["reason"], payload=row["payload"],
        headers=json.loads(row["headers"]), received_at=row["received_at"], at=row["at"],
        attempts=row["attempts"], status=row["status"], message_id=row["message_id"],
        incomplete=row["incomplete"], result=row["result"], batch=row["batch"],
        handed=tuple(json.loads(row["handed"] or "[]")), first_reason=row["first_reason"],
    )  # fmt: skip
