"""Headers of a message, of whatever bytes they are made: no message can stop its source.

Whoever publishes may put any bytes where the headers are; the server stores them as they came.
"""

from __future__ import annotations

_VERSION = b"NATS/1.0"


def headers_of(block: bytes) -> dict[str, str] | None:
    """By name; a name that comes several times has all its values. `Status` and `Description` are what the
    server says in the first line."""
    if not block:
        return None
    first, _, lines = block.partition(b"\r\n")
    code, _, said = first.removeprefix(_VERSION).strip().partition(b" ")
    found: dict[str, str] = {}
    for line in lines.split(b"\r\n"):
        name, colon, value = line.partition(b":")
        if colon and name.strip():
            key, text = _text(name), _text(value)
            found[key] = f"{found[key]}, {text}" if key in found else text
    if code:
        found |= {"Status": _text(code), "Description": _text(said)}
    return found


def _text(part: bytes) -> str:
    return part.strip().decode(errors="replace")
