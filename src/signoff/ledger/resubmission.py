"""Resubmitting: a corrected event takes the place of a dead letter.

The corrected event has an id of its own that names the old one: `incoming/39/+1` is the first one that was
resubmitted for `incoming/39`. It goes where the old one failed, and nowhere else. In the account it belongs
to the event its source has received: that stays dead-lettered until the new one is delivered or dropped.

The order is that of a replay that fails at a later stage: the new letter is durable first, then the ledger
says that it stands for the event, then the old one is closed. Killed in between, there is a letter too many,
and the same command goes on from there; there is never an event without a letter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from signoff.errors import StateError
from signoff.ledger.dead_letters import DeadLetters, close_letters
from signoff.ledger.interrupted_drops import dropping
from signoff.ledger.ledger import Ledger
from signoff.ledger.letter import MASKED, OPEN, RESUBMITTED, DeadLetter
from signoff.ledger.outcome import BUFFER, EDITED, EventId, Outcome, Resolution, edition, is_united

NAMES = "signoff-resubmits"
"""Header of a corrected event: the id of the one it takes the place of."""


def why_not(letter: DeadLetter) -> str:
    """Why a letter cannot be resubmitted; '' if it can."""
    if is_united(letter.child):
        return "its row was made of several events; replay it, or drop it"
    if letter.source.endswith(BUFFER):
        return (
            f"it is a row in the log {letter.source}, and not an event as its source has sent it; "
            "replay it, or drop it"
        )
    if letter.status not in ("stored", "dropping"):
        return f"it is {letter.status}; wait until that has ended"
    if MASKED in letter.incomplete:
        return (
            f"{letter.incomplete}, which would go out with the mask; send the event again, and drop this one"
        )
    return ""


def resubmit(
    ledger: Ledger,
    letters: DeadLetters,
    old: DeadLetter,
    payload: bytes,
    headers: Mapping[str, str] | None = None,
) -> DeadLetter:
    """Put a corrected event into the place of a letter. Returns its letter, which is to be replayed.

    Raises StateError where that cannot be done, or somebody else has the letter meanwhile.
    """
    if why := why_not(old):
        raise StateError(f"the dead letter of {old.event_id} at {old.stage} cannot be resubmitted: {why}")
    with dropping(letters.path):
        return _take_its_place(ledger, letters, old, payload, headers)


def _take_its_place(
    ledger: Ledger,
    letters: DeadLetters,
    old: DeadLetter,
    payload: bytes,
    headers: Mapping[str, str] | None,
) -> DeadLetter:
    if not letters.begin_drop([old]):
        raise StateError(f"the dead letter of {old.event_id} at {old.stage} is being replayed or dropped")
    event = EventId(old.source, old.sequence, _next_child(ledger, letters, old))
    new = replace(
        old,
        event_id=str(event),
        payload=payload,
        headers={**(old.headers if headers is None else headers), NAMES: old.event_id},
        incomplete="",  # it is whole now, whatever was kept of the old one
        status="stored",
        at=0.0,
        batch="",
        result="",
        first_reason=old.first_reason,
    )
    closed = Resolution(*old.key, Outcome.DROPPED, f"{RESUBMITTED} {event}", moved=True)
    close_letters(ledger, letters, [closed], [new])
    return letters.get(*new.key)[0]


def _next_child(ledger: Ledger, letters: DeadLetters, old: DeadLetter) -> str:
    """The child of the next corrected event. An open letter that the ledger does not know was left by a kill,
    and is replaced."""
    taken = [row.row.child for row in ledger.rows(old.source, old.sequence)]
    closed = [x for x in letters.of_origin(old.source, old.sequence) if x.status not in OPEN]
    taken += [letter.child for letter in closed]
    numbers = [int(edition(child)[1:]) for child in taken if edition(child)[1:].isdigit()]
    own = old.child.removeprefix(old.edition).strip("/")
    return "/".join(part for part in (f"{EDITED}{max(numbers, default=0) + 1}", own) if part)
