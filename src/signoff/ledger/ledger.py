"""The ledger: the durable record of the outcome of every event, and of what is undelivered at which sink.

Invariants:
- Every method that changes something is one transaction, on disk when it returns.
- An origin leaves `owed` once and never comes back; from then on a further outcome for it is ignored
  and counted. Only the replay or the drop of a dead letter moves it to another count (`resolve`).
- Batches of a source follow each other without gap or overlap, so received = counted + owed + not
  yet in a batch, at any moment.
- `owed` of a batch only shrinks; the batch is settled when it is empty.

The engine (driver), the intakes and the CLI hold a `Ledger` each, in different processes.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from pyroaring import BitMap64

from signoff.ledger import batches, compaction, expiry, resolution, row_records, settlement, stage_totals
from signoff.ledger.batch_state import BatchState, Debtor, SinkState, Wait
from signoff.ledger.outcome import (
    Account,
    Resolution,
    RowOutcome,
)
from signoff.ledger.places import settle_places
from signoff.ledger.row_records import RowRecord
from signoff.ledger.schema import SCHEMA, UPGRADES, VERSION
from signoff.ledger.sequences import from_bytes
from signoff.ledger.settlement import SettledRange
from signoff.ledger.sink_rows import debtor
from signoff.ledger.sink_totals import (
    SinkFailure,
    SinkTotals,
    events_owed,
    failing_sinks,
    failing_steps,
    sink_totals,
)
from signoff.ledger.source_totals import Books, books_of, counts_between, first_open, next_of
from signoff.ledger.stage_totals import StageTotal
from signoff.ledger.store import Store

KEEP_BATCHES = 1000
"""Settled batches whose details are kept; what is older is folded into the totals."""


class Ledger:
    """The ledger of one state directory. Safe to use from several threads."""

    def __init__(
        self,
        path: Path,
        *,
        readonly: bool = False,
        keep_batches: int = KEEP_BATCHES,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._store = Store(path, schema=SCHEMA, version=VERSION, upgrades=UPGRADES, readonly=readonly)
        self._keep = keep_batches
        self.on_forget: compaction.OnForget | None = None
        """Told of refused and expired origins that are so old that they are forgotten, before they are.
        Without it, they are not forgotten where there is an index of keys."""
        self._now = now
        self._failures: dict[tuple[str, str], tuple[float, int]] = {}
        """By sink and source: when a sink failed last (monotonic), and for how many times in a row."""

    # -- the engine, for each batch ---------------------------------------------------------------

    def batch(self, source: str, start: int, end: int) -> BatchState | None:
        """What is known of this batch; None when it was never opened. A folded batch is settled."""
        with self._store.read() as db:
            return batches.state(db, source, start, end)

    def open_batch(self, source: str, start: int, end: int, sinks: Sequence[str]) -> BatchState:
        """Begin a batch, or find it again after a crash.

        Raises StateError for a range that overlaps a known batch without being equal to it, or that
        leaves events out between itself and the last one.
        """
        with self._store.write() as db:
            return batches.open_batch(db, source, start, end, sinks, self._now())

    def record(
        self,
        source: str,
        start: int,
        end: int,
        *,
        delivered: BitMap64,
        outcomes: Sequence[RowOutcome],
        sinks: Mapping[str, SinkState],
        owed: BitMap64,
        waits: Mapping[Wait, SinkState] | None = None,
        rows: Mapping[str, int] | None = None,
        filtered: Mapping[str, tuple[int, str]] | None = None,
        at_once: bool = False,
        published: Collection[Debtor] = (),
    ) -> BatchState:
        """Record one attempt at a batch. May be repeated; dead letters must be stored before.

        `delivered`: origins of which this attempt delivered a row. `outcomes`: the exceptions.
        `owed`: origins that are not settled after it; all others are. `waits`: rows that wait for a step.
        `rows`: rows each sink took in this attempt. An origin in none of the sets was dropped. `filtered`: by
        stage how many rows it left out, and in a word why; added to the totals, so it is told with the first
        attempt only. `at_once`: a refusal settles its event. `published`: sinks and waits of which rows that
        were asked for by name were published under their number (`BatchState.published_as`).

        What a sink has handed on (`SinkState.handed_on`) is added to what it had handed on before, and stays
        owed until it is answered (`release`), whatever `owed` says.
        """
        with self._store.write() as db:
            attempt = batches.Attempt(
                delivered, outcomes, sinks, waits or {}, owed, rows or {}, filtered or {}, at_once, published
            )
            batches.record(db, source, start, end, attempt, self._now())
            compaction.fold(db, source, self._keep, self.on_forget, forget=self._may_forget())
            state = batches.state(db, source, start, end)
        assert state is not None
        for name, sink in sinks.items():
            if sink.error and not sink.done:
                self._failures[name, source] = time.monotonic(), sink.attempts
        return state

    def settle_places(self, source: str, places: Mapping[str, str]) -> dict[str, str]:
        """Before the first batch of a run: where those of its sinks keep their batches that replace them by
        their names. Returns those that were renamed, the new names by the old ones. May be repeated."""
        with self._store.write() as db:
            return settle_places(db, source, places)

    def _may_forget(self) -> bool:
        """Whether nobody has to be told, or somebody is: to an index that is not told, what was refused and
        forgotten looks as if it had ended well."""
        return self.on_forget is not None or not (self._store.path.parent / compaction.KEY_INDEX).exists()

    def release(
        self, source: str, start: int, end: int, sink: str, answer: batches.HandedOnOutcome
    ) -> SinkState | None:
        """Record the outcomes of rows that a sink has written to another log. May be repeated.

        `answer.asked`: the origins it is about. `answer.still`: those of them of which something is not
        settled there; the others leave this sink's debt, with `answer.outcomes` for those of which it did
        not simply end well. Returns how far the sink is with the batch; None when it is not known to have
        handed on anything (yet).
        """
        with self._store.write() as db:
            return batches.release(db, source, start, end, sink, answer, self._now())

    def exceptions(self, source: str, start: int, end: int) -> list[RowOutcome]:
        """What was recorded of single rows in a range and stands, but expiries."""
        with self._store.read() as db:
            return row_records.exceptions(db, source, start, end)

    def delivered(self, source: str, start: int, end: int) -> BitMap64:
        """Origins of a range of which a row was delivered; what is folded counts as that, if nothing else is
        known of it."""
        with self._store.read() as db:
            return row_records.delivered(db, source, start, end)

    def note_sink(self, sink: str, source: str = "", *, error: str = "") -> None:
        """Remember that a sink fails outside of a batch (`prepare`), or with '' that it works again."""
        with self._store.write() as db:
            batches.note_sink(db, sink, source, 0, error, self._now() if error else None)

    # -- the intake -------------------------------------------------------------------------------

    def expire(self, source: str, reasons: Mapping[int, str]) -> dict[int, str]:
        """Settle origins as expired, whether a batch has taken them or not.

        Returns those that were still owed, each with its reason and, added to it, who owed it.
        """
        if not reasons:
            return {}
        with self._store.write() as db:
            return expiry.expire(db, source, reasons, self._now())

    @property
    def state_id(self) -> str:
        """What tells this state directory from all others, and '' before its first run."""
        with self._store.read() as db:
            if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'identity'").fetchone():
                return ""
            row = db.execute("SELECT state FROM identity").fetchone()
        return "" if row is None else str(row["state"])

    def version(self) -> int:
        """A number that changes when anyone has written to the ledger; cheap enough to poll."""
        return self._store.version()

    def settlements(self, source: str, after: int, upto: int = 0) -> tuple[int, list[SettledRange]]:
        """Ranges in which something was settled since change number `after` (0: since ever).

        Reasons of events below `upto` are left out: the caller knows their outcomes.

        Returns the number to ask with next time. A range comes again, whole, when more of it is
        settled; `Follower` in `signoff.ledger.settlement` gives each origin once.
        """
        with self._store.read() as db:
            return settlement.settlements(db, source, after, upto)

    def told(self, source: str, upto: int) -> None:
        """The source was told everything below `upto`; refusals below it need not be kept for it.

        A source for which this was never called is one that is not told anything.
        """
        with self._store.write() as db:
            settlement.told(db, source, upto)

    def tells_nobody(self, source: str) -> None:
        """This source is not told outcomes (any more): its refusals need not be kept for an intake."""
        with self._store.write() as db:
            db.execute("UPDATE sources SET told = NULL WHERE source = ?", (source,))

    # -- trimming and the account -----------------------------------------------------------------

    def settled_upto(self, source: str) -> int:
        """All origins below are settled; an offset source may commit this position."""
        with self._store.read() as db:
            first = first_open(db, source)
            return next_of(db, source) if first is None else int(from_bytes(first["owed"]).min())

    def needed_from(self, source: str) -> int:
        """The log must keep everything from here on: the oldest batch that is not settled begins here."""
        with self._store.read() as db:
            first = first_open(db, source)
            return next_of(db, source) if first is None else int(first["start"])

    def open_batches(self, source: str) -> list[BatchState]:
        """The batches that are not settled, oldest first."""
        with self._store.read() as db:
            found = db.execute(
                'SELECT start, "end" FROM batches WHERE source = ? AND owed_count > 0 ORDER BY start',
                (source,),
            ).fetchall()
            states = [batches.state(db, source, start, end) for start, end in found]
            return [state for state in states if state is not None]

    def owing(self) -> list[tuple[str, Debtor]]:
        """Sources, and the sinks and waits that are not done with a batch of theirs that is open."""
        with self._store.read() as db:
            found = db.execute(
                "SELECT DISTINCT source, sink FROM batch_sinks AS owing WHERE NOT done AND EXISTS (SELECT 1 "
                "FROM batches WHERE source = owing.source AND start = owing.start AND owed_count > 0)"
            )
            return [(source, debtor(name)) for source, name in sorted(map(tuple, found))]

    def books(self, source: str) -> Books:
        with self._store.read() as db:
            return books_of(db, source)

    def counts_between(self, source: str, start: int, end: int) -> dict[str, int] | None:
        """How many origins of a range ended how, if it is of whole, settled batches that are not folded."""
        with self._store.read() as db:
            return counts_between(db, source, start, end)

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """What is read inside is of one moment. Not for long: meanwhile SQLite cannot tidy up its file."""
        with self._store.read():
            yield

    def sinks_of_last_batch(self, source: str) -> set[str] | None:
        """The sinks that were there when the last batch was taken; None before the first."""
        with self._store.read() as db:
            found = db.execute("SELECT max(start) FROM batches WHERE source = ?", (source,)).fetchone()
            if found[0] is None:
                return None
            rows = db.execute(
                "SELECT sink FROM batch_sinks WHERE source = ? AND start = ?", (source, found[0])
            )
            return {sink for (sink,) in rows}

    def account(self, source: str, received: int) -> Account:
        return self.books(source).account(received)

    def sources(self) -> list[str]:
        with self._store.read() as db:
            return [name for (name,) in db.execute("SELECT source FROM sources ORDER BY source")]

    def failing(self) -> tuple[dict[tuple[str, str], SinkFailure], dict[tuple[str, Wait], str]]:
        """Sinks that failed when they were asked last, by sink and source ('' outside of batches); and errors
        of steps that rows wait for, by source and wait."""
        with self._store.read() as db:
            sinks, steps = failing_sinks(db), failing_steps(db)
        return {(row["sink"], row["source"]): self._failure(row) for row in sinks}, steps

    def _failure(self, row: sqlite3.Row) -> SinkFailure:
        at, attempts = self._failures.get((row["sink"], row["source"]), (float("-inf"), 0))
        return SinkFailure(row["error"], bool(row["asked_again"]), time.monotonic() - at, attempts)

    def sink_totals(self) -> dict[str, SinkTotals]:
        with self._store.read() as db:
            return sink_totals(db)

    def events_owed(self) -> dict[str, int]:
        """By sink: events of open batches that it is still to be given rows of."""
        with self._store.read() as db:
            return events_owed(db)

    def departures(self) -> list[StageTotal]:
        """Where rows left the pipeline undelivered, and why, over all batches."""
        with self._store.read() as db:
            return stage_totals.read(db)

    # -- dead letters and explain -----------------------------------------------------------------

    def resolve(self, resolutions: Sequence[Resolution]) -> int:
        """Move origins between counts after dead letters were replayed or dropped; repeatable.

        `delivered` and `dropped` close a letter's row; `dead_lettered` keeps it, or adds the one at a
        later stage where the replay ended. Returns how many rows were found. Call it before the
        letter itself is marked: see `signoff.ledger.dead_letters.close_letters`.
        """
        if not resolutions:
            return 0
        with self._store.write() as db:
            return resolution.resolve(db, resolutions)

    def rows(self, source: str, sequence: int) -> list[RowRecord]:
        """The exceptions known of one event."""
        with self._store.read() as db:
            return row_records.records(db, source, sequence)

    def batch_of(self, source: str, sequence: int) -> BatchState | None:
        """The batch that holds this origin; None while it waits in the log, or when it is folded."""
        with self._store.read() as db:
            found = db.execute(
                'SELECT start, "end" FROM batches WHERE source = ? AND start <= ? AND "end" > ?',
                (source, sequence, sequence),
            ).fetchone()
            return batches.state(db, source, found["start"], found["end"]) if found else None

    def named_upto(self, source: str) -> int:
        """No event of this number or above has anything recorded of it."""
        with self._store.read() as db:
            query = "SELECT coalesce(max(sequence) + 1, 0) FROM exceptions WHERE source = ?"
            return int(db.execute(query, (source,)).fetchone()[0])

    def holds_token(self, token: str) -> bool:
        """Whether a link is this pipeline's to write."""
        with self._store.read() as db:
            return db.execute("SELECT 1 FROM tokens WHERE token = ?", (token,)).fetchone() is not None

    def holds_token_like(self, end: str) -> bool:
        """Whether it has one that ends so."""
        with self._store.read() as db:
            found = db.execute("SELECT 1 FROM tokens WHERE token GLOB '*' || ?", (end,))
            return found.fetchone() is not None

    def add_token(self, token: str) -> None:
        with self._store.write() as db:
            db.execute("INSERT OR IGNORE INTO tokens VALUES (?)", (token,))

    def remove_token(self, token: str) -> None:
        with self._store.write() as db:
            db.execute("DELETE FROM tokens WHERE token = ?", (token,))

    def folded_upto(self, source: str) -> int:
        """Everything below is settled, and only its counts are known."""
        with self._store.read() as db:
            found = db.execute("SELECT folded FROM sources WHERE source = ?", (source,)).fetchone()
            return int(found["folded"]) if found else 0

    @property
    def store(self) -> Store:
        """For the audit, which reads the tables themselves."""
        return self._store

    def close(self) -> None:
        self._store.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
