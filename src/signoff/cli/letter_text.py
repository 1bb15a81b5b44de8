"""The payload of a dead letter on the way to a corrected one: in an editor, from a file or standard input."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import typer

from signoff.ledger import DeadLetter
from signoff.ledger.explain import as_text
from signoff.operate.corrections import some
from signoff.terminal import say


def payload_of(given: str) -> bytes:
    """What a file, or standard input, holds. Raises RequestError when that is nothing."""
    return some(_read(given, "--payload"))


def lines_of(given: str) -> str:
    """The text of a file that `export` wrote, or of standard input."""
    try:
        return _read(given, "--from").decode()
    except UnicodeDecodeError:
        raise typer.BadParameter(f"{given} is not UTF-8", param_hint="--from") from None


def edited(letter: DeadLetter) -> bytes:
    """The payload as somebody has changed it in an editor. Raises typer.Exit when nothing was changed."""
    text, encoding = as_text(letter.payload)
    if encoding != "utf-8":
        raise typer.BadParameter("the payload is no text; give the corrected one with --payload")
    changed = click.edit(text, require_save=True, extension=".json")
    if changed is None or changed.rstrip("\n") == text.rstrip("\n"):
        say("nothing was changed, and nothing was sent", err=True)
        raise typer.Exit(1)
    # Editors end a text with a line break, which the event did not have.
    return some((changed if text.endswith("\n") else changed.rstrip("\n")).encode())


def _read(given: str, option: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if given == "-" else Path(given).read_bytes()
    except OSError as error:
        raise typer.BadParameter(f"{given}: {error.strerror}", param_hint=option) from None
