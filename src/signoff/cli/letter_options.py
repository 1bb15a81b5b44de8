"""The options that `signoff dead-letters` commands share: which letters they are about."""

from __future__ import annotations

from typing import Annotated

import typer

from signoff.cli.reading import TEXT

EventIds = Annotated[
    list[str] | None, typer.Argument(metavar="[EVENT_ID]...", help="Event ids, as `list` prints them.")
]
Stage = Annotated[str | None, typer.Option(help="Only letters of this transform, sink or source.", **TEXT)]
Source = Annotated[str | None, typer.Option(help="Only letters of events of this source.", **TEXT)]
Reason = Annotated[
    str | None, typer.Option(help="Only reasons that contain this text, ignoring case.", **TEXT)
]
Matching = Annotated[
    str | None, typer.Option(metavar="REGEX", help="Only reasons in which this regular expression matches.")
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

HINTS = {
    "event_id": "EVENT_ID", "payload": "--payload", "lines": "--from",
    **{name: f"--{name}" for name in ("stage", "source", "reason", "matching", "since", "until", "where")},
}  # fmt: skip
"""How the parts of a request are called on the command line."""
