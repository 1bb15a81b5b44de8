"""Which dead letters are meant: by event ids, by stage, source, reason and time, by SQL over the payload."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime

from signoff.errors import RequestError
from signoff.ledger import DeadLetter, DeadLetters, EventId
from signoff.ledger.letter import OPEN, Status
from signoff.ledger.letter_filter import LetterFilter
from signoff.pipeline.durations import DURATION, UNITS
from signoff.pipeline.graph import Graph


@dataclass(frozen=True)
class Choice:
    """The letters that were asked for, as they were asked for."""

    event_ids: tuple[str, ...] = ()
    chosen: LetterFilter = field(default_factory=LetterFilter)
    where: str | None = None
    """A condition in Spark SQL. Starts Spark; anybody who may write one runs code as the process does."""

    def __bool__(self) -> bool:
        return bool(self.event_ids or self.chosen or self.where)

    def letters(
        self,
        graph: Graph,
        letters: DeadLetters,
        *,
        statuses: tuple[Status, ...] = OPEN,
        limit: int | None = None,
        brief: bool = False,
    ) -> list[DeadLetter]:
        """Them, the oldest first; an id without a letter is a mistake worth telling."""
        brief = brief and self.where is None
        found = self._named(letters, statuses, brief) if self.event_ids else None
        if found is None:
            found = letters.list(
                self.chosen, statuses=statuses, limit=None if self.where else limit, brief=brief
            )
        if self.where is not None:
            from signoff.engine.replay.letter_sql import holds

            found = holds(graph, found, self.where)
        return found if limit is None else found[:limit]

    def _named(self, letters: DeadLetters, statuses: tuple[Status, ...], brief: bool) -> list[DeadLetter]:
        brief = brief and self.chosen.payload is None
        found: dict[tuple[str, str], DeadLetter] = {}
        for event_id in self.event_ids:
            mine = [x for x in letters.get(checked(event_id), brief=brief) if x.status in statuses]
            if not mine:
                kind = "open dead letter" if statuses == OPEN else "dead letter"
                raise RequestError(f"there is no {kind} of {event_id}", "event_id")
            kept = [x for x in mine if self.chosen.has(x)]
            found.update({letter.key: letter for letter in kept})
        return list(found.values())


def choice(
    event_ids: list[str] | None = None,
    stage: str | None = None,
    source: str | None = None,
    reason: str | None = None,
    matching: str | None = None,
    since: str | None = None,
    until: str | None = None,
    where: str | None = None,
) -> Choice:
    """What somebody has written, as a choice. Raises RequestError for what cannot be meant.

    An empty value is no choice: it would mean every letter, and comes from a variable that is not set.
    """
    fields = {
        "stage": stage, "source": source, "reason": reason, "matching": matching, "since": since,
        "until": until, "where": where,
    }  # fmt: skip
    for name, text in fields.items():
        if text is not None and not text.strip():
            raise RequestError("is empty; leave it out, or say which", name)
    if matching is not None:
        try:
            re.compile(matching)
        except re.error as error:
            raise RequestError(f"not a regular expression: {error}", "matching") from None
    chosen = LetterFilter(stage, source, reason, matching, moment(since, "since"), moment(until, "until"))
    return Choice(tuple(event_ids or ()), chosen, where)


def moment(text: str | None, about: str) -> float | None:
    """A time as a user writes it, in seconds since the epoch: ISO 8601 (in UTC if it says nothing), or how
    long ago."""
    if text is None:
        return None
    if (ago := re.match(DURATION, text)) is not None and ago[2]:
        return time.time() - float(ago[1]) * UNITS[ago[2]]
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise RequestError(
            f'"{text}" is not a time; write 2026-11-15T10:00:00Z, 2026-11-15, or 2h for two hours ago', about
        ) from None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def checked(event_id: str) -> str:
    """The event id as it is written in the ledger."""
    try:
        return str(EventId.parse(event_id))
    except ValueError as error:
        raise RequestError(str(error), "event_id") from None
