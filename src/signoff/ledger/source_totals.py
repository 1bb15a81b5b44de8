"""The sums of one source, and where its open batches begin. Reads only."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass

from signoff.ledger.outcome import FINAL, Account, Outcome


@dataclass(frozen=True, slots=True)
class Books:
    """The sums of one source, read in one moment; `account` adds what the log says was received."""

    next: int
    counts: Mapping[Outcome, int]
    owed: int
    expired_ahead: int
    """Origins that expired before a batch took them."""
    ignored: int
    """Outcomes that came for origins settled already."""

    @property
    def settled(self) -> int:
        """Origins that have a final outcome."""
        return self.next - self.owed + self.expired_ahead

    def account(self, received: int) -> Account:
        """`received` must have been read from the log after the books, or it may lag behind them."""
        counts = {outcome.value: self.counts[outcome] for outcome in FINAL}
        counts["expired"] += self.expired_ahead
        waiting = received - self.next - self.expired_ahead
        return Account(received=received, in_flight=self.owed + waiting, **counts)


def books_of(db: sqlite3.Connection, source: str) -> Books:
    row = db.execute("SELECT * FROM sources WHERE source = ?", (source,)).fetchone()
    if row is None:
        return Books(0, dict.fromkeys(FINAL, 0), 0, 0, 0)
    sums = ", ".join(f"coalesce(sum({outcome}), 0) AS {outcome}" for outcome in FINAL)
    kept = db.execute(
        f"SELECT {sums}, coalesce(sum(owed_count), 0) AS owed FROM batches WHERE source = ?", (source,)
    ).fetchone()
    (ahead,) = db.execute(
        "SELECT count(*) FROM exceptions WHERE source = ? AND sequence >= ? AND outcome = ?",
        (source, row["next"], Outcome.EXPIRED),
    ).fetchone()
    counts = {outcome: row[outcome] + kept[outcome] for outcome in FINAL}
    return Books(row["next"], counts, kept["owed"], ahead, row["ignored"])


def counts_between(db: sqlite3.Connection, source: str, start: int, end: int) -> dict[str, int] | None:
    """What became of the origins of a range that is made of whole, settled batches; None if it is not, or if
    some of them are folded."""
    sums = ", ".join(f"coalesce(sum({outcome}), 0) AS {outcome}" for outcome in FINAL)
    row = db.execute(
        f'SELECT {sums}, coalesce(sum("end" - start), 0) AS known, coalesce(sum(owed_count), 0) AS owed '
        'FROM batches WHERE source = ? AND start >= ? AND "end" <= ?',
        (source, start, end),
    ).fetchone()
    if row["known"] != end - start or row["owed"]:
        return None
    return {outcome.value: row[outcome] for outcome in FINAL}


def first_open(db: sqlite3.Connection, source: str) -> sqlite3.Row | None:
    found: sqlite3.Row | None = db.execute(
        "SELECT start, owed FROM batches WHERE source = ? AND owed_count > 0 ORDER BY start LIMIT 1",
        (source,),
    ).fetchone()
    return found


def next_of(db: sqlite3.Connection, source: str) -> int:
    found = db.execute("SELECT next FROM sources WHERE source = ?", (source,)).fetchone()
    return int(found["next"]) if found else 0
