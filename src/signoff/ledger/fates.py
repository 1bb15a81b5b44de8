"""Outcomes of single events, for their duplicates."""

from __future__ import annotations

from enum import StrEnum

from pyroaring import BitMap64

from signoff.ledger.ledger import Ledger
from signoff.ledger.sequences import from_bytes


class Fate(StrEnum):
    IN_FLIGHT = "in flight"
    SETTLED = "settled"
    """Delivered, dropped or a dead letter."""
    LOST = "lost"
    """Refused or expired, or no event that the ledger knows."""


class Fates:
    """Outcomes from the ledger, each read once: make a new one to see later outcomes."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._open: dict[str, tuple[BitMap64, int]] = {}
        self._known: dict[tuple[str, int], Fate] = {}

    def __call__(self, source: str, sequence: int) -> Fate:
        """What became of an event."""
        event = (source, sequence)
        if sequence in self._taken(source)[0]:
            return Fate.IN_FLIGHT
        if event not in self._known:
            self._known[event] = self._ask(source, sequence)
        return self._known[event]

    def in_flight(self, source: str) -> BitMap64:
        """The events of a source that batches have taken, and that are not settled."""
        return self._taken(source)[0]

    def _ask(self, source: str, sequence: int) -> Fate:
        if sequence >= self._taken(source)[1]:  # an owner's batch was opened: this ledger is an older one
            return Fate.LOST
        with self._ledger.store.read() as db:
            negative = db.execute(
                "SELECT 1 FROM exceptions WHERE source = ? AND sequence = ? "
                "AND outcome IN ('refused', 'expired') LIMIT 1",
                (source, sequence),
            ).fetchone()
        return Fate.LOST if negative else Fate.SETTLED

    def _taken(self, source: str) -> tuple[BitMap64, int]:
        if source not in self._open:
            with self._ledger.store.read() as db:
                known = db.execute("SELECT next FROM sources WHERE source = ?", (source,)).fetchone()
                owed = db.execute("SELECT owed FROM batches WHERE source = ? AND owed_count > 0", (source,))
                in_flight = BitMap64.union(BitMap64(), *(from_bytes(row["owed"]) for row in owed))
            self._open[source] = in_flight, int(known["next"]) if known else 0
        return self._open[source]
