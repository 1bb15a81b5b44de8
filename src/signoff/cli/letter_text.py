"""A dead letter for people and as JSON, and its payload on the way to a corrected one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
import typer

from signoff.cli.reading import when
from signoff.ledger import DeadLetter
from signoff.ledger.explain import as_text

_SHOWN = 60


def as_dict(letter: DeadLetter, why_not: str) -> dict[str, Any]:
    """`why_not`: why it cannot be replayed."""
    payload, encoding = as_text(letter.payload)
    fields: dict[str, Any] = {
        "event_id": letter.event_id,
        "source": letter.source,
        "stage": letter.stage,
        "reason": letter.reason,
        "at": when(letter.at),
        "received_at": when(letter.received_at),
        "attempts": letter.attempts,
        "status": letter.status,
        "replayable": not why_not,
        "message_id": letter.message_id,
        "headers": dict(letter.headers),
        "payload": payload,
    }
    if why_not:
        fields["not_replayable"] = why_not
    if letter.first_reason:
        fields["first_reason"] = letter.first_reason
    if letter.result:
        fields["replay"] = letter.result
    if letter.handed:
        fields["waits_behind"] = list(letter.handed)
    return fields if encoding == "utf-8" else {**fields, "payload_encoding": encoding}


def payload_of(given: str) -> bytes:
    """What a file, or standard input, holds. Raises typer.BadParameter when that is nothing."""
    try:
        return _some(sys.stdin.buffer.read() if given == "-" else Path(given).read_bytes())
    except OSError as error:
        raise typer.BadParameter(f"{given}: {error.strerror}", param_hint="--payload") from None


def _some(payload: bytes) -> bytes:
    """Nothing is what a command before a pipe leaves that has failed; it takes no event's place."""
    if not payload.strip():
        raise typer.BadParameter("the corrected payload is empty; to give the event up: dead-letters drop")
    return payload


def edited(letter: DeadLetter) -> bytes:
    """The payload as somebody has changed it in an editor. Raises typer.Exit when nothing was changed."""
    text, encoding = as_text(letter.payload)
    if encoding != "utf-8":
        raise typer.BadParameter("the payload is no text; give the corrected one with --payload")
    changed = click.edit(text, require_save=True, extension=".json")
    if changed is None or changed.rstrip("\n") == text.rstrip("\n"):
        typer.echo("nothing was changed, and nothing was sent", err=True)
        raise typer.Exit(1)
    # Editors end a text with a line break, which the event did not have.
    return _some((changed if text.endswith("\n") else changed.rstrip("\n")).encode())


def short(text: str) -> str:
    first = text.splitlines()[0] if text else ""
    return first if len(first) <= _SHOWN else first[: _SHOWN - 1] + "…"
