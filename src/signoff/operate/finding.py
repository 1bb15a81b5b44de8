"""Which events somebody means by what they know of them: an id of ours, or the id the event came with.

A log keeps an event until it is settled, and a dead letter as long as it is stored: in these it can be found
by its own id. Of what was delivered only counts are kept.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import pyarrow.compute as pc

from signoff.errors import LogError, RequestError
from signoff.ledger.dead_letters import DeadLetters
from signoff.ledger.outcome import EventId
from signoff.log import LogReader
from signoff.operate.letters import open_letters
from signoff.pipeline.graph import Graph

_PATIENCE_S = 3.0
_MOST = 50


@dataclass(frozen=True)
class Found:
    """The events that were meant."""

    events: tuple[str, ...]
    """Their ids, at most fifty."""
    by_message_id: bool
    complete: bool
    """False: a log is so long that only its newest part was looked through."""


def find_events(graph: Graph, text: str) -> Found:
    """By an event id (of a source that is known), else by a message id. Raises RequestError for nothing."""
    text = text.strip()
    if not text:
        raise RequestError("name an event, such as incoming/17, or the id it came with", "event")
    try:
        event = EventId.parse(text)
    except ValueError:
        event = None
    if event is not None and event.source in graph.sources:
        return Found((str(event),), by_message_id=False, complete=True)
    with open_letters(graph) as letters:
        found = dict.fromkeys(_in_letters(letters, text))
    complete = True
    for source in graph.sources:
        numbers, whole = _in_log(LogReader(graph.state / "log" / source), text)
        found.update(dict.fromkeys(str(EventId(source, number)) for number in numbers))
        complete = complete and whole
    if event is not None and not found:  # of a source that was removed, say: its story says what is known
        return Found((str(event),), by_message_id=False, complete=True)
    return Found(tuple(found)[:_MOST], by_message_id=True, complete=complete)


def _in_letters(letters: DeadLetters, message_id: str) -> list[str]:
    return [letter.event_id for letter in letters.with_message_id(message_id, _MOST)]


def _in_log(log: LogReader, message_id: str) -> tuple[list[int], bool]:
    """Sequence numbers, and whether the whole log was looked through: its newest part first, for a while."""
    found: list[int] = []
    until = time.monotonic() + _PATIENCE_S
    first, end = log.first(), log.head()
    step = 100_000
    while first < end:
        start = max(first, end - step)
        try:
            for sequence, events in log.read(start, end, ["message_id"]):
                hits = pc.indices_nonzero(pc.fill_null(pc.equal(events["message_id"], message_id), False))
                found += [sequence + index for index in hits.to_pylist()]
        except LogError:  # it is being trimmed: what is gone is settled
            first = max(log.first(), start + 1)
        end = start
        if end > first and (time.monotonic() > until or len(found) >= _MOST):
            return found[:_MOST], False
    return found[:_MOST], True
