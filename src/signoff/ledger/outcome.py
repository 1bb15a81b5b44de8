"""The vocabulary of the account: what can become of an event, and how its rows and letters are named.

    delivered      at least one row was taken by a sink, and nothing worse happened to any other row
    dropped        no row was left to deliver: filtered, unfolded into nothing, or dropped by policy
    dead_lettered  a row could not be computed or delivered and is stored as a dead letter
    failed         a row was not taken, and will be tried again; the event is still in flight
    refused        a row could not be delivered and the policy is to give the source a negative answer
    expired        the source stopped waiting; whatever happens to the event later is ignored

Every event received counts once, under the worst of its rows:
expired > refused > dead_lettered > delivered > dropped. `failed` is never final.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """What became of a row or an event; the words are those of the CLI, the audit and the docs."""

    DELIVERED = "delivered"
    DROPPED = "dropped"
    DEAD_LETTERED = "dead_lettered"
    FAILED = "failed"
    REFUSED = "refused"
    EXPIRED = "expired"


FINAL = (Outcome.DELIVERED, Outcome.DROPPED, Outcome.DEAD_LETTERED, Outcome.REFUSED, Outcome.EXPIRED)
"""The outcomes a settled event can have, in the order the account names them."""


BUFFER = ".buffer"
"""Ends the name of a source whose events are the rows of a sink's buffer; no node of a user is called so."""
OTHERS = "origins"
"""Header of a row in a buffer that was made from several events: the numbers of those besides the first."""

UNITED = "~"
"""A part of a child that begins so names a row that was made of several events: it stands in the account
once for each of them, always with the same child. The same sign is in `signoff.transforms.united_rows`."""


EDITED = "+"
"""Begins the first part of the child of a row that was made from a corrected event: `incoming/39/+1` is the
first one that was resubmitted for `incoming/39`, `incoming/39/+2` the second."""


def edition(child: str) -> str:
    """`+1` for a row of the first corrected event; '' for one of the event as it came."""
    first = child.partition("/")[0]
    return first if first.startswith(EDITED) else ""


def is_united(child: str) -> bool:
    """Whether a row was made of several events, or made from such a row."""
    return child.startswith(UNITED) or f"/{UNITED}" in child


def _is_text(name: str) -> bool:
    """Not so an argument that was no UTF-8: nothing is called so, and no database takes it."""
    return name.isascii() or not any("\ud800" <= sign <= "\udfff" for sign in name)


@dataclass(frozen=True, slots=True, order=True)
class RowRef:
    """One row of one event: `child` is what follows `source/sequence` in the row's event id."""

    sequence: int
    child: str = ""

    def holds(self, other: RowRef) -> bool:
        """Whether the other is this row, or was made from it: `3/high` from `3`, and all from ''."""
        if self.sequence != other.sequence:
            return False
        return self.child in ("", other.child) or other.child.startswith(f"{self.child}/")


@dataclass(frozen=True, slots=True)
class EventId:
    """`source/sequence`, or `source/sequence/child` for a row made from the event."""

    source: str
    sequence: int
    child: str = ""

    @classmethod
    def parse(cls, text: str) -> EventId:
        """Raises ValueError, with the form that was expected, for anything that is not an event id."""
        source, _, rest = text.partition("/")
        number, _, child = rest.partition("/")
        if (
            not source
            or not (number.isascii() and number.isdigit())
            or len(number) > 18
            or not _is_text(text)
        ):
            raise ValueError(f'"{text}" is not an event id; it looks like incoming/17 or incoming/17/3')
        return cls(source, int(number), child)

    @property
    def row(self) -> RowRef:
        return RowRef(self.sequence, self.child)

    def __str__(self) -> str:
        return f"{self.source}/{self.sequence}" + (f"/{self.child}" if self.child else "")


@dataclass(frozen=True, slots=True)
class RowOutcome:
    """What became of a row, where it was not simply delivered or filtered: the exceptions.

    Only `dead_lettered`, `refused`, `dropped` (by policy) and `failed` are reported this way.
    """

    row: RowRef
    stage: str
    """The transform or sink where it happened; for a bad event the name of the source."""
    outcome: Outcome
    reason: str
    transient: bool = False
    """Asking the sink again later may help: it was given up after the last retry."""
    letter: str = ""
    """The id of the dead letter that stands for it, if that is of a row it was made into behind a log."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """How the replay of one dead letter ended."""

    event_id: str
    stage: str
    outcome: Outcome
    """`delivered` or `dropped`: the letter is closed. `dead_lettered`: it failed again, for `reason`."""
    reason: str = ""
    letter: str = ""
    """Of `dead_lettered`: the id of another letter that stands for it, if that is of a row it was made into
    behind a log."""
    moved: bool = False
    """It failed at a later stage, or was resubmitted: another letter stands for it."""


@dataclass(frozen=True, slots=True)
class Account:
    """Where the events of one source are. The fields after `received` add up to it when it balances."""

    received: int = 0
    delivered: int = 0
    dropped: int = 0
    dead_lettered: int = 0
    refused: int = 0
    expired: int = 0
    in_flight: int = 0

    @property
    def settled(self) -> int:
        return self.delivered + self.dropped + self.dead_lettered + self.refused + self.expired

    @property
    def balanced(self) -> bool:
        return self.in_flight >= 0 and self.received == self.settled + self.in_flight

    def as_dict(self) -> dict[str, int]:
        """In the order in which `signoff audit --json` prints it."""
        return {name: getattr(self, name) for name in self.__slots__}
