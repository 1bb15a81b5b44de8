"""The ids of an event's trace and of the spans in it. They follow from the event: what is done again after a
crash has them again."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b

HEADER = "traceparent"
"""The header that carries a context, by the W3C's Trace Context."""
_CONTEXT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?", re.ASCII)
_SAMPLED = 1


@dataclass(frozen=True, slots=True)
class Context:
    """A span that others continue."""

    trace: int
    span: int

    def __str__(self) -> str:
        """As a `traceparent` says it."""
        return f"00-{self.trace:032x}-{self.span:016x}-{_SAMPLED:02x}"


@dataclass(frozen=True, slots=True)
class TracedEvent:
    """An event of which spans are made."""

    source: str
    sequence: int
    received_ns: int
    """Nanoseconds since the epoch."""
    trace: int
    parent: Context | None = None
    """What it continues: the span of the one who sent it."""
    known_as: str = ""
    """The id of its rows, where that is not its own: behind a buffer."""

    @property
    def event_id(self) -> str:
        return f"{self.source}/{self.sequence}"

    @property
    def row_id(self) -> str:
        """What the ids of its rows at a sink are, or begin with."""
        return self.known_as or self.event_id

    def context(self, *names: str) -> Context:
        """One of its spans: `receive`, `settle`, `process`, or `send` and the sink."""
        return Context(
            self.trace, _number(8, f"{self.trace:032x}", self.event_id, str(self.received_ns), *names)
        )


def sampled_context(value: str | None) -> Context | None:
    """The context of a header, if it is one and is sampled."""
    match = _CONTEXT.fullmatch(value or "")
    if match is None or not int(match[3], 16) & _SAMPLED:
        return None
    trace, span = int(match[1], 16), int(match[2], 16)
    return Context(trace, span) if trace and span else None


def traced(
    source: str, sequence: int, received_ns: int, headers: Mapping[str, str], known_as: str = ""
) -> TracedEvent:
    """An event of the log that is to be traced."""
    parent = sampled_context(headers.get(HEADER))
    trace = parent.trace if parent else _number(16, source, str(sequence), str(received_ns))
    return TracedEvent(source, sequence, received_ns, trace, parent, known_as)


def context_of_batch(source: str, start: int, end: int, first: Context) -> Context:
    """The span of a batch, which belongs to no event's trace. `first`: what it links to first."""
    names = source, str(start), str(end), str(first)
    return Context(_number(16, *names), _number(8, *names))


def _number(size: int, *names: str) -> int:
    """Never zero, which would be no id."""
    return int.from_bytes(blake2b("\0".join(names).encode(), digest_size=size).digest(), "big") or 1
