"""Text that holds what others have sent (payloads, reasons, headers, file names), on its way to a terminal.

Control characters move the cursor, clear lines and set clipboards there; so on a terminal they are written as
`\\u001b`, which in JSON means the same. Into a file or a pipe everything goes as it is.
"""

from __future__ import annotations

import re
import sys
from typing import TextIO

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""All but tab and newline; also what turns the direction of text round."""


def is_terminal(stream: TextIO) -> bool:
    return stream.isatty()


def harmless(text: str, stream: TextIO) -> str:
    """The text as it may be written to a stream."""
    return written_out(text) if is_terminal(stream) else text


def written_out(text: str) -> str:
    """The text with its control characters written out."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def say(text: str, *, err: bool = False, nl: bool = True) -> None:
    """`typer.echo` of what others have sent."""
    import typer

    typer.echo(harmless(text, sys.stderr if err else sys.stdout), err=err, nl=nl)
