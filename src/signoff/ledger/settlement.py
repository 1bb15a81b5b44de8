"""Settlement as the intake reads it: which origins are settled, and what the source is to be told.

A range is reported whole each time more of it is settled, with the origins it still owes, so the
answer is the same whoever asks and however often. `Follower` remembers what was handed out and
gives each origin once per process.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyroaring import BitMap64

from signoff.ledger.sequences import from_bytes, from_range

if TYPE_CHECKING:
    from signoff.ledger.ledger import Ledger


@dataclass(frozen=True, slots=True)
class SettledRange:
    """A range of a source's log in which all origins but the owed ones are settled."""

    start: int
    end: int
    owed: BitMap64
    refused: Mapping[int, str]
    """Refused origins that are settled, with the reason."""
    expired: Mapping[int, str]
    transient: BitMap64 = field(default_factory=BitMap64)
    """Those of the refused of which every refused row was given up after the last retry."""
    dead_lettered: BitMap64 = field(default_factory=BitMap64)
    delivered: BitMap64 | None = None
    """Origins of which a row was delivered; None where that is no longer known of each."""

    @property
    def settled(self) -> BitMap64:
        return from_range(self.start, self.end) - self.owed


@dataclass(frozen=True, slots=True)
class Settled:
    """Origins to tell the source about now; no origin is in two of the fields."""

    acknowledged: BitMap64
    """Delivered, dropped or dead-lettered."""
    refused: Mapping[int, str] = field(default_factory=dict)
    expired: Mapping[int, str] = field(default_factory=dict)
    transient: BitMap64 = field(default_factory=BitMap64)
    """Those of the refused that may be taken another time."""
    dead_lettered: BitMap64 = field(default_factory=BitMap64)
    dropped: BitMap64 = field(default_factory=BitMap64)
    delivered: BitMap64 = field(default_factory=BitMap64)
    """Of those that are acknowledged; one that is in none of these three was settled too long ago."""

    def __bool__(self) -> bool:
        return bool(self.acknowledged or self.refused or self.expired)


def settlements(
    db: sqlite3.Connection, source: str, after: int, upto: int = 0
) -> tuple[int, list[SettledRange]]:
    """See `Ledger.settlements`."""
    (change,) = db.execute("SELECT change FROM clock").fetchone()
    known = db.execute("SELECT * FROM sources WHERE source = ?", (source,)).fetchone()
    if known is None:
        return change, []
    found = []
    if known["folded"] and known["folded_change"] > after:
        refused, expired, transient = _negative(db, source, upto, known["folded"])
        refused = {n: reason for n, reason in refused.items() if n not in expired}
        dead = _dead_lettered(db, source, upto, known["folded"])
        found.append(SettledRange(0, known["folded"], BitMap64(), refused, expired, transient, dead))
    for batch in db.execute(
        'SELECT start, "end", owed, refused, expired, dead_lettered, delivered_set FROM batches '
        "WHERE source = ? AND change > ? ORDER BY start",
        (source, after),
    ).fetchall():
        owed = from_bytes(batch["owed"])
        negative = batch["refused"] or batch["expired"]
        refused, expired, transient = {}, {}, BitMap64()
        if negative:
            refused, expired, transient = _negative(db, source, max(batch["start"], upto), batch["end"])
        refused = {n: reason for n, reason in refused.items() if n not in owed and n not in expired}
        start, end = max(batch["start"], upto), batch["end"]
        dead = _dead_lettered(db, source, start, end) if batch["dead_lettered"] else BitMap64()
        delivered = from_bytes(batch["delivered_set"])
        found.append(SettledRange(batch["start"], end, owed, refused, expired, transient, dead, delivered))
    if known["ahead_change"] > after:
        _, expired, _ = _negative(db, source, max(known["next"], upto), 2**62)
        found += [SettledRange(n, n + 1, BitMap64(), {}, {n: reason}) for n, reason in expired.items()]
    return change, found


def _dead_lettered(db: sqlite3.Connection, source: str, start: int, end: int) -> BitMap64:
    found = db.execute(
        "SELECT DISTINCT sequence FROM exceptions WHERE source = ? AND sequence >= ? AND sequence < ? "
        "AND outcome = 'dead_lettered' AND resolved = ''",
        (source, start, end),
    )
    return BitMap64(sequence for (sequence,) in found)


def told(db: sqlite3.Connection, source: str, upto: int) -> None:
    """See `Ledger.told`."""
    db.execute(
        "INSERT INTO sources (source, told) VALUES (?, ?) "
        "ON CONFLICT DO UPDATE SET told = max(coalesce(told, 0), excluded.told)",
        (source, upto),
    )


class Follower:
    """Hands each settled origin of a source to the intake once.

    Used by one thread: `poll`, tell the source, `confirm`, again and again. What was polled but not
    confirmed when the process died is handed out again by the next process. `confirm` lets the
    ledger forget refusals; it writes only when something negative was told, so it costs nothing.
    """

    def __init__(self, ledger: Ledger, source: str) -> None:
        self._ledger = ledger
        self.source = source
        self._change = 0
        self._version: int | None = None
        self._upto = 0
        """All origins below were handed out."""
        self._beyond = BitMap64()
        """Origins handed out from `_upto` on."""
        self._negative = False
        """Something negative was handed out that the ledger still keeps for us."""
        self._told = 0
        ledger.told(source, 0)

    def poll(self) -> Settled | None:
        """What is newly settled, or None; a few microseconds when nobody has written."""
        version = self._ledger.version()
        if version == self._version:
            return None
        change, found = self._ledger.settlements(self.source, self._change, self._upto)
        self._version, self._change = version, change
        acknowledged, refused, expired, transient = BitMap64(), {}, {}, BitMap64()
        dead_lettered, dropped, delivered = BitMap64(), BitMap64(), BitMap64()
        for part in found:
            fresh = from_range(max(part.start, self._upto), part.end) - part.owed - self._beyond
            refused.update({n: reason for n, reason in part.refused.items() if n in fresh})
            expired.update({n: reason for n, reason in part.expired.items() if n in fresh})
            acknowledged |= fresh
            transient |= part.transient
            dead_lettered |= part.dead_lettered & fresh
            if part.delivered is not None:
                delivered |= part.delivered & fresh
                dropped |= fresh - part.delivered
        positive = acknowledged - BitMap64(refused) - BitMap64(expired)
        dead_lettered &= positive
        rest = positive - dead_lettered
        settled = Settled(
            positive, refused, expired, transient & BitMap64(refused), dead_lettered, dropped & rest,
            delivered & rest,
        )  # fmt: skip
        self._remember(acknowledged)
        self._negative |= bool(refused or expired)
        return settled or None

    def pending(self, start: int, end: int) -> BitMap64:
        """The origins of a range that were not handed out."""
        return from_range(max(start, self._upto), end) - self._beyond

    def expire(self, reasons: Mapping[int, str]) -> Mapping[int, str]:
        """Record expiries and hand out, here and never again by `poll`, those that were still owed.

        The reasons come back with who owed each of them.
        """
        expired = self._ledger.expire(self.source, reasons) if reasons else {}
        self._remember(BitMap64(expired))
        self._negative |= bool(expired)
        return expired

    def confirm(self) -> None:
        """The source was told everything that was handed out."""
        if self._negative and self._upto > self._told:
            self._ledger.told(self.source, self._upto)
            self._told = self._upto
            self._negative = bool(self._beyond)

    @property
    def upto(self) -> int:
        """All origins below were handed out."""
        return self._upto

    def _remember(self, handed: BitMap64) -> None:
        self._beyond |= handed
        if self._upto not in self._beyond:
            return
        end = self._upto + 1
        while end in self._beyond:  # doubling, then the exact end: runs are long
            step = 1
            while self._beyond.contains_range(end, end + step * 2):
                step *= 2
            end += step
        self._beyond.remove_range(self._upto, end)
        self._upto = end


def _negative(
    db: sqlite3.Connection, source: str, start: int, end: int
) -> tuple[dict[int, str], dict[int, str], BitMap64]:
    """Refused and expired with their reasons, and those of which no row was refused for good."""
    refused: dict[int, str] = {}
    expired: dict[int, str] = {}
    for_good = BitMap64()
    for sequence, outcome, reason, transient in db.execute(
        "SELECT sequence, outcome, reason, transient FROM exceptions "
        "WHERE source = ? AND sequence >= ? AND sequence < ? AND outcome IN ('refused', 'expired')",
        (source, start, end),
    ):
        (refused if outcome == "refused" else expired).setdefault(sequence, reason)
        if outcome == "refused" and not transient:
            for_good.add(sequence)
    return refused, expired, BitMap64(refused) - for_good
