"""What rows hand on of the traces of their events."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

TRACEPARENT = "traceparent"
"""The header that carries a context, by the W3C's Trace Context."""


def handed_contexts(contexts: Mapping[str, str], ids: pa.Array) -> list[str | None]:
    """The context of each row, by its id; empty where none has any."""
    if not contexts:
        return []
    found = [_of(contexts, event_id) for event_id in ids.to_pylist()]
    return found if any(found) else []


def _of(contexts: Mapping[str, str], event_id: str | None) -> str | None:
    """Of a row that is made from an event, that of the event."""
    while event_id:
        if (context := contexts.get(event_id)) is not None:
            return context
        event_id = event_id.rpartition("/")[0]
    return None
