"""Names of PostgreSQL's tables and columns, as users write them and as SQL needs them."""

from __future__ import annotations

import re

NAME_BYTES = 63
"""What PostgreSQL keeps of a name; the rest it cuts off, and two names may become one."""
_NAME = re.compile(r'\s*(?:"((?:[^"]|"")+)"|([^".\s]+))\s*')


def name_parts(name: str) -> tuple[str, ...]:
    """The one or two names in `name`, as PostgreSQL reads them: without quotes in lower case."""
    parts: list[str] = []
    place = 0
    while match := _NAME.match(name, place):
        parts.append(match[1].replace('""', '"') if match[1] else match[2].lower())
        place = match.end() + 1
        if name[match.end() :][:1] != ".":
            break
    if match is None or match.end() < len(name) or len(parts) > 2:
        raise ValueError(
            f'"{name}" is not the name of a table; write name, schema.name or "Name"."With.Dots"'
        )
    if any(len(part.encode()) > NAME_BYTES for part in parts):
        raise ValueError(f'"{name}" is longer than the {NAME_BYTES} bytes PostgreSQL keeps of a name')
    return tuple(parts)


def quoted_name(name: str) -> str:
    """A table as it may stand in a statement, from how a user writes it. Raises ValueError."""
    return ".".join(map(quoted, name_parts(name)))


def quoted(name: str) -> str:
    """A name as SQL takes it, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'
