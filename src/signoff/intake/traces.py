"""The spans of an intake: `receive`, when an event is durable; `ack` or `nack`, when its source is told."""

from __future__ import annotations

import logging
import time

from pyroaring import BitMap64

from signoff.errors import LogError
from signoff.log import LogReader
from signoff.sources.contract import Settlement
from signoff.traces.chosen import Chooser
from signoff.traces.export import Exporter
from signoff.traces.ids import TracedEvent
from signoff.traces.spans import Where, span

logger = logging.getLogger(__name__)

_MOST = 10_000
"""Events that are awaited to be settled; of more the oldest have no end in their traces."""
_RECALLED = 200_000
"""Events of an earlier process that are looked through."""


class IntakeTraces:
    """Used by the intake's one thread. What fails here is no trouble of the intake."""

    def __init__(self, where: Where, log: LogReader, chooser: Chooser, exporter: Exporter) -> None:
        self._where, self._log, self._chooser, self._exporter = where, log, chooser, exporter
        self._awaited: dict[int, TracedEvent] = {}
        self._numbers = BitMap64()

    def close(self) -> None:
        """Send what waits, if that is soon done."""
        self._exporter.close()

    def recall(self, told_upto: int, end: int) -> None:
        """The events that an earlier process received, and of which it did not tell the source."""
        start = max(told_upto, end - _RECALLED, self._log.first())
        if start < end:
            self._await(self._chosen(start, end, limited=False))

    def logged(self, first: int, count: int) -> None:
        """These are durable now."""
        now, events = time.time_ns(), self._chosen(first, first + count)
        self._exporter.put(
            span(
                self._exporter, self._where, "receive", event.context("receive"), event.parent,
                event.received_ns, now, kind="client", attributes={"signoff.event.id": event.event_id},
            )
            for event in events
        )  # fmt: skip
        self._await(events)

    def settled(self, settlement: Settlement, began_ns: int) -> None:
        """The source was told of these."""
        if not self._numbers:
            return
        now = time.time_ns()
        for numbers, told in (
            (settlement.acknowledged, "acknowledged"),
            (BitMap64(settlement.refused), "refused"),
            (BitMap64(settlement.expired), "expired"),
        ):
            for number in self._numbers & numbers:
                event = self._awaited.pop(number)
                self._numbers.discard(number)
                taken = told == "acknowledged"
                said = {"signoff.event.id": event.event_id, "signoff.outcome": told}
                made = span(
                    self._exporter, self._where, "settle", event.context("settle"),
                    event.context("receive"), began_ns, now, kind="client", name="ack" if taken else "nack",
                    attributes=said, failed=not taken,
                )  # fmt: skip
                self._exporter.put([made])

    def _chosen(self, start: int, end: int, *, limited: bool = True) -> list[TracedEvent]:
        try:
            return self._chooser.choose(self._log, start, end, limited=limited)
        except LogError:  # settled and trimmed within the moment
            return []

    def _await(self, events: list[TracedEvent]) -> None:
        for event in events:
            self._awaited[event.sequence] = event
            self._numbers.add(event.sequence)
        while len(self._awaited) > _MOST:
            oldest = next(iter(self._awaited))
            del self._awaited[oldest]
            self._numbers.discard(oldest)
