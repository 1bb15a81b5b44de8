"""Where rows of an event are that went into another log: for `signoff explain`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from signoff.ledger.outcome import BUFFER, EventId
from signoff.link.handover import LinkPlace, origins_of
from signoff.link.notes import Handed, LinkNotes
from signoff.log import LogReader
from signoff.sinks.contract import BatchRef


def rows_in_buffers(state: Path, event: EventId) -> list[EventId]:
    """The rows made from an event that a buffer of this state directory holds for it, by their ids there."""
    found = []
    for directory in sorted((state / "links").glob(f"*{BUFFER}")):
        notes = LinkNotes(directory / "link.db", readonly=True)
        try:
            handed = [each for each in notes.each() if _holds(each, event)]
        finally:
            notes.close()
        log = LogReader(state / "log" / directory.name)
        for part in handed:
            if part.last <= log.head():
                found += [EventId(directory.name, number) for number in _numbers(log, part, event.sequence)]
    return found


def rows_of_event(place: LinkPlace, event: EventId) -> list[int]:
    """The rows of a link that were made from an event, while their outcome is waited for."""
    notes = LinkNotes(place.database, readonly=True)
    try:
        handed = [each for each in notes.each() if _holds(each, event)]
    finally:
        notes.close()
    log = LogReader(place.log)
    head = log.head() if handed else 0
    return [number for part in handed if part.last <= head for number in _numbers(log, part, event.sequence)]


def in_a_buffer(state: Path, sink: str, batch: BatchRef) -> bool:
    """Whether a buffer of this state directory holds rows of a batch that a sink, as it was called then, has
    handed on."""
    for directory in (state / "links").glob(f"*{BUFFER}"):
        notes = LinkNotes(directory / "link.db", readonly=True)
        try:
            if any(handed.sink == sink for handed in notes.find(batch)):
                return True
        finally:
            notes.close()
    return False


def _holds(handed: Handed, event: EventId) -> bool:
    return handed.batch.source == event.source and event.sequence in handed.origins


def _numbers(log: LogReader, handed: Handed, sequence: int) -> list[int]:
    return [
        first + int(index)
        for first, events in log.read(handed.first, handed.last, ["position", "headers"])
        for places, origins in [origins_of(events)]
        for index in np.unique(places[origins == sequence])
    ]
