"""A row at a node, as it is shown: its values without secrets, and what became of its event."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, Literal

from signoff.engine.state_dir.giving_up import sources_gone
from signoff.ledger.explain import Explanation, as_text, explain
from signoff.log import LogReader
from signoff.pipeline.graph import Graph
from signoff.pipeline.secrets import redact
from signoff.stateful.key_index import reasons_to_wait

_MOST_ORIGINS = 100
"""Events that a row is said to stand for."""


@dataclass(frozen=True, slots=True)
class TappedRow:
    """One row at a node."""

    event_id: str
    """Of the row; `explain` tells the whole story of it."""
    at: Literal["passed", "failed", "dropped", "waits"]
    """What the node did with it."""
    reason: str = ""
    """Why the node did not pass it."""
    row: Mapping[str, Any] = field(default_factory=dict)
    """Its columns behind the node, or those that come to a sink; empty unless it passed."""
    input: str = ""
    """By which input it came to a sink that has several."""
    events: tuple[str, ...] = ()
    """The events it was made from."""
    event: str = ""
    """What became of its event so far: `waiting`, `in flight`, `delivered`, … (see `explain`)."""
    sink: str = ""
    """Of a row that comes to a sink: `owed`, `done`, `buffered`, `dead_lettered`, …"""
    received_at: str = ""

    def as_dict(self) -> dict[str, Any]:
        fields = {name: getattr(self, name) for name in self.__slots__}
        shown = {name: list(value) if name == "events" else value for name, value in fields.items() if value}
        return shown | ({"row": dict(self.row)} if self.at == "passed" else {})


def with_states(graph: Graph, node: str, rows: Iterable[TappedRow]) -> list[TappedRow]:
    """The rows, with what the account says of each."""
    waits_for = reasons_to_wait(graph.state, cache(partial(sources_gone, graph)))
    is_sink = node in graph.sinks

    def state_of(row: TappedRow) -> TappedRow:
        story = explain(graph, row.event_id, LogReader, waits_for)
        reason = _reason(story, node, row) if row.at in ("failed", "dropped") else ""
        sink = next((line.state for line in story.lines if is_sink and line.stage == node), "")
        return replace(
            row,
            event=story.state,
            sink=sink,
            reason=reason or row.reason,
            received_at=story.received_at or "",
        )

    return [state_of(row) for row in rows]


def _reason(story: Explanation, node: str, row: TappedRow) -> str:
    """As the run recorded it: that knows more of an expression that failed."""
    lines = [line for line in story.lines if line.stage == node and line.event_id == row.event_id]
    return redact(lines[0].text) if lines else ""


def shown(value: Any) -> Any:
    """A value as JSON can hold it, without secrets."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, bytes):
        return redact(as_text(value)[0])
    if isinstance(value, Mapping):
        return {redact(str(key)): shown(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [shown(part) for part in value]
    return value


def ids(source: str, sequence: int, child: str, further: Iterable[int] | None) -> tuple[str, tuple[str, ...]]:
    """The id of a row, and of the events it was made from, if these are several."""
    own = f"{source}/{sequence}"
    others = [*(further or ())][:_MOST_ORIGINS]
    events = tuple(f"{source}/{number}" for number in (sequence, *others)) if others else ()
    return (f"{own}/{child}" if child else own), events
