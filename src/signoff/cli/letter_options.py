"""Which dead letters a command is about: the options that `signoff dead-letters` commands share."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

import typer

from signoff.cli.reading import TEXT
from signoff.ledger import DeadLetter, DeadLetters, EventId
from signoff.ledger.letter import OPEN, Status
from signoff.ledger.letter_filter import LetterFilter
from signoff.pipeline.durations import DURATION, UNITS
from signoff.pipeline.graph import Graph

EventIds = Annotated[
    list[str] | None, typer.Argument(metavar="[EVENT_ID]...", help="Event ids, as `list` prints them.")
]
Stage = Annotated[str | None, typer.Option(help="Only letters of this transform, sink or source.", **TEXT)]
Source = Annotated[str | None, typer.Option(help="Only letters of events of this source.", **TEXT)]
Reason = Annotated[
    str | None, typer.Option(help="Only reasons that hold this text, whatever its case.", **TEXT)
]
Matching = Annotated[
    str | None, typer.Option(metavar="REGEX", help="Only reasons in which this regular expression is found.")
]
Since = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Only those that failed at this time or later: 2026-11-15T10:00:00Z, 2026-11-15, or 2h for two "
        "hours ago.",
    ),
]
Until = Annotated[str | None, typer.Option(metavar="TIME", help="Only those that failed before; as --since.")]
Where = Annotated[
    str | None,
    typer.Option(
        metavar="SQL",
        help="Only those for which this Spark SQL expression holds; it starts Spark. Columns: event_id, "
        "source, stage, reason, first_reason, at, received_at, attempts, status, message_id, headers, "
        "payload (as text), and event, the payload parsed as JSON (VARIANT): event:stationId::bigint = 7.",
    ),
]
All = Annotated[bool, typer.Option("--all", help="Every letter that is stored.")]


@dataclass(frozen=True)
class Choice:
    """The letters that were asked for, as they were asked for."""

    event_ids: tuple[str, ...]
    chosen: LetterFilter
    where: str | None

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
        found = self._named(letters, statuses) if self.event_ids else None
        if found is None:
            full = self.where is not None or not brief
            found = letters.list(
                self.chosen, statuses=statuses, limit=None if self.where else limit, brief=not full
            )
        if self.where is not None:
            from signoff.engine.letter_sql import holds

            found = holds(graph, found, self.where)
        return found if limit is None else found[:limit]

    def _named(self, letters: DeadLetters, statuses: tuple[Status, ...]) -> list[DeadLetter]:
        found: dict[tuple[str, str], DeadLetter] = {}
        for event_id in self.event_ids:
            mine = [x for x in letters.get(checked(event_id)) if x.status in statuses]
            if not mine:
                kind = "open dead letter" if statuses == OPEN else "dead letter"
                raise typer.BadParameter(f"there is no {kind} of {event_id}", param_hint="EVENT_ID")
            kept = [x for x in mine if self.chosen.has(x)]
            found.update({letter.key: letter for letter in kept})
        return list(found.values())


def choice(
    event_ids: list[str] | None,
    stage: str | None,
    source: str | None,
    reason: str | None,
    matching: str | None,
    since: str | None,
    until: str | None,
    where: str | None,
) -> Choice:
    """What the options say. Raises typer.BadParameter for what cannot be meant.

    An empty value is no choice: it would mean every letter, and comes from a variable that is not set.
    """
    options = {
        "stage": stage, "source": source, "reason": reason, "matching": matching, "since": since,
        "until": until, "where": where,
    }  # fmt: skip
    for name, text in options.items():
        if text is not None and not text.strip():
            raise typer.BadParameter("is empty; leave it out, or say which", param_hint=f"--{name}")
    if matching is not None:
        try:
            re.compile(matching)
        except re.error as error:
            raise typer.BadParameter(f"not a regular expression: {error}", param_hint="--matching") from None
    times = [moment(text, f"--{name}") for name, text in (("since", since), ("until", until))]
    return Choice(tuple(event_ids or ()), LetterFilter(stage, source, reason, matching, *times), where)


def moment(text: str | None, option: str) -> float | None:
    """A time as a user writes it, in seconds since the epoch: ISO 8601 (in UTC if it says nothing), or how
    long ago."""
    if text is None:
        return None
    if (ago := re.match(DURATION, text)) is not None and ago[2]:
        return time.time() - float(ago[1]) * UNITS[ago[2]]
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f'"{text}" is not a time; write 2026-11-15T10:00:00Z, 2026-11-15, or 2h for two hours ago',
            param_hint=option,
        ) from None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def checked(event_id: str) -> str:
    try:
        return str(EventId.parse(event_id))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="EVENT_ID") from None
