"""How events of one key become one: when a group begins, when it ends, and what comes out of it.

Nothing here knows Spark: what is kept between batches is reached through `Kept`, whatever keeps it. The same
events, at the same time, with the same things kept, always give the same results with the same ids. So what
is done again after a kill gives its results once more, and they are recognised.

Times of groups are milliseconds since the epoch, those of events microseconds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Literal, Protocol

from signoff.transforms.united_rows import UNITED

EndedBy = Literal["until", "count", "timeout"]

NEVER = 0
"""The deadline of a group that only events can end."""
_HASH_LENGTH = 12
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Rules:
    """When a group ends."""

    name: str
    """The step's."""
    count: int | None
    """With so many events; None: however many come."""
    timeout_ms: int | None
    """So long after its first event; None: however long it takes."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One event, as the link in front brings it."""

    number: int
    """Its place in the link's log: events are folded in this order."""
    event_id: str
    payload: str
    """Its columns as JSON."""
    ends: bool
    """It ends its group."""
    received_at: int


@dataclass(frozen=True, slots=True)
class Head:
    """What is known of a group without reading its events."""

    folded: int
    first: int
    """Number of its first event."""
    first_at: int
    last_at: int
    deadline: int
    digest: str
    """Of the ids of its events, in order."""

    def with_one(self, event: Arrival) -> Head:
        return replace(
            self,
            folded=self.folded + 1,
            first_at=min(self.first_at, event.received_at),
            last_at=max(self.last_at, event.received_at),
            digest=hashlib.sha256(f"{self.digest} {event.event_id}".encode()).hexdigest(),
        )

    def is_due(self, now: int) -> bool:
        return self.deadline != NEVER and now >= self.deadline


class Kept(Protocol):
    """What is kept of the group of one key between batches."""

    def head(self) -> Head | None: ...

    def events(self) -> Iterable[tuple[int, str]]:
        """Number and payload of each event, in the order in which they were kept."""

    def keep(self, head: Head, events: Sequence[tuple[int, str]]) -> None:
        """Replace the head, and add events to those kept."""

    def clear(self) -> None: ...

    def wake_at(self, deadline: int) -> None:
        """Have `expire` called at a batch at this time or later."""

    def let_sleep(self, deadline: int) -> None:
        """Do not have it called."""


@dataclass(frozen=True, slots=True)
class GroupChange:
    """One thing that a batch says of a key: a result, or that a group was begun that outlasts the batch."""

    event_id: str | None = None
    """The result's."""
    numbers: Sequence[int] | None = None
    """Of the events that went in."""
    payload: str | None = None
    opened: int | None = None
    """Deadline of a group that is kept from now on."""
    closed: int | None = None
    """Deadline of a group that was kept until now."""


def fold(rules: Rules, kept: Kept, arrivals: Iterable[Arrival], now: int) -> Iterator[GroupChange]:
    """The events of a batch that have one key, at the time of the batch."""
    head = kept.head()
    if head is not None and head.is_due(now):
        # Not left to the timer, which comes after the events: they would be in a group that is over.
        kept.let_sleep(head.deadline)
        yield _result(rules, head, _taken(kept), "timeout", was_kept=True)
        head = None
    was_kept, fresh = head is not None, list[tuple[int, str]]()
    for event in sorted(arrivals, key=lambda event: event.number):
        head = (head or _begin(rules, event, now)).with_one(event)
        fresh.append((event.number, event.payload))
        ended_by = _ended_by(rules, head, event)
        if ended_by is None:
            continue
        if was_kept and head.deadline != NEVER:
            kept.let_sleep(head.deadline)
        members = [*(_taken(kept) if was_kept else ()), *fresh]
        yield _result(rules, head, members, ended_by, was_kept=was_kept)
        head, was_kept, fresh = None, False, []
    if head is None or not fresh:
        return
    kept.keep(head, fresh)
    if not was_kept:
        if head.deadline != NEVER:
            kept.wake_at(head.deadline)
        yield GroupChange(opened=head.deadline)


def expire(rules: Rules, kept: Kept, now: int) -> Iterator[GroupChange]:
    """The time of a key has come; nothing happens if its group has ended in the meantime.

    It may also be the clock that was set: then the group is to be looked at again when its time has come.
    """
    head = kept.head()
    if head is not None and head.is_due(now):
        yield _result(rules, head, _taken(kept), "timeout", was_kept=True)
    elif head is not None and head.deadline != NEVER:
        kept.wake_at(head.deadline)


def _begin(rules: Rules, event: Arrival, now: int) -> Head:
    deadline = NEVER if rules.timeout_ms is None else now + rules.timeout_ms
    return Head(0, event.number, event.received_at, event.received_at, deadline, "")


def _ended_by(rules: Rules, head: Head, event: Arrival) -> EndedBy | None:
    if event.ends:
        return "until"
    return "count" if rules.count is not None and head.folded >= rules.count else None


def _taken(kept: Kept) -> list[tuple[int, str]]:
    events = list(kept.events())
    kept.clear()
    return events


def _result(
    rules: Rules, head: Head, events: Sequence[tuple[int, str]], ended_by: EndedBy, *, was_kept: bool
) -> GroupChange:
    payload = (
        f'{{"events":[{",".join(text for _, text in events)}],"folded":{head.folded},"ended_by":"{ended_by}",'
        f'"first_at":"{_moment(head.first_at)}","last_at":"{_moment(head.last_at)}"}}'
    )
    return GroupChange(
        event_id=f"{rules.name}/{head.first}/{UNITED}{head.digest[:_HASH_LENGTH]}",
        numbers=[number for number, _ in events],
        payload=payload,
        closed=head.deadline if was_kept else None,
    )


def _moment(micros: int) -> str:
    return (_EPOCH + timedelta(microseconds=micros)).isoformat(timespec="microseconds")
