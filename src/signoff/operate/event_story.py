"""The story of one event: what `signoff explain` says of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from signoff.clock import when
from signoff.errors import RequestError
from signoff.invoker.lookup import asked_for
from signoff.ledger.explain import Explanation, explain
from signoff.ledger.outcome import EventId
from signoff.link.lookup import rows_in_buffers
from signoff.log import LogReader
from signoff.pipeline.graph import Graph
from signoff.stateful.key_index import reasons_to_wait


@dataclass(frozen=True)
class Story:
    """Where an event is, and why it is not acknowledged."""

    event: Explanation
    buffered: tuple[Explanation, ...]
    """Its rows in buffers, as far as they are known."""
    asked_for: tuple[tuple[str, str], ...]
    """Runs of jobs that it has asked for: the sink, and what became of it."""

    @property
    def known(self) -> bool:
        return self.event.state != "unknown"

    def to_json(self) -> dict[str, Any]:
        return {
            **_as_dict(self.event),
            "buffered": [_as_dict(row) for row in self.buffered],
            "asked_for": [{"sink": sink, "text": text} for sink, text in self.asked_for],
        }


def read_story(graph: Graph, event_id: str) -> Story:
    """Tell it. Raises RequestError when the text is no event id; of an event that was never received, the
    story says so."""
    waits_for = reasons_to_wait(graph.state, partial(_sources_gone, graph))
    try:
        event = explain(graph, event_id, LogReader, waits_for)
    except ValueError as error:
        raise RequestError(str(error), "event_id") from None
    rows = tuple(
        explain(graph, str(row), LogReader, waits_for)
        for row in rows_in_buffers(graph.state, EventId.parse(event_id))
    )
    events = [EventId.parse(event_id), *(EventId.parse(row.event_id) for row in rows)]
    asked = dict.fromkeys((one.sink, one.text) for each in events for one in asked_for(graph, each))
    return Story(event, rows, tuple(asked))


def _sources_gone(graph: Graph) -> frozenset[str]:
    from signoff.engine.state_dir.giving_up import sources_gone  # it loads Spark, which most stories need not

    return sources_gone(graph)


def _as_dict(story: Explanation) -> dict[str, Any]:
    result: dict[str, Any] = {
        name: getattr(story, name)
        for name in ("event_id", "state", "acknowledged", "why", "received_at", "payload", "payload_encoding")
    }
    result["headers"] = dict(story.headers)
    result["stages"] = [
        {"stage": x.stage, "event_id": x.event_id, "state": x.state, "text": x.text} for x in story.lines
    ]
    result["dead_letters"] = [
        {"event_id": x.event_id, "stage": x.stage, "reason": x.reason, "status": x.status, "at": when(x.at),
         "attempts": x.attempts, "first_reason": x.first_reason, "replay": x.result}
        for x in story.letters
    ]  # fmt: skip
    return result
