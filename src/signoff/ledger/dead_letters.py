"""Dead letters: events that could not be computed or delivered, stored with their reason, replayable.

    stored ──request_replay──► replaying ──resolve──► replayed
      │  ▲                       │    │                  ▲
      │  └──── failed again ◄────┤    └──► handed ───────┤ its rows are in another log (see `signoff.link`),
      │                          └───────────┘───────────┘ and what becomes of them there decides
      └──drop──► dropping ──► dropped

Invariants: `add` is on disk when it returns, before the ledger counts the origin as settled. A letter
is one per (event id, stage); the same one again is the same letter. A row that was made of several events
has one for each, with that event, and all with the same child: they are replayed and dropped together
(`whole`). The ledger moves an origin's count
*before* its letter is closed (`close_letters`, `drop_letters`): a crash in between leaves a letter too
many, which is replayed or dropped again, never an origin whose letter is gone. The rows of a replay are
handed to sinks under the name of a batch, which is noted before (`claim`): until it is known what became of
them they are replayed under this name and together, also if some were dropped meanwhile, and no other letter
is. A letter that does not hold the whole event (`incomplete`) is not replayed.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from signoff.ledger.interrupted_drops import dropping
from signoff.ledger.ledger import Ledger
from signoff.ledger.letter import MASKED, MOVED, OPEN, RESUBMITTED, DeadLetter, Status, from_row
from signoff.ledger.letter_filter import LetterFilter
from signoff.ledger.letters_schema import BRIEF, OF_BUFFER, SCHEMA, UPGRADES, UPSERT, VERSION
from signoff.ledger.outcome import OTHERS, UNITED, EventId, Outcome, Resolution, is_united
from signoff.ledger.store import Store
from signoff.pipeline.secrets import redact

KEEP_CLOSED = 10_000
"""Replayed and dropped letters kept as history."""

CHUNK = 5_000
"""Letters handled in one transaction, so that other processes do not wait long for the lock."""
CHUNK_BYTES = 4 * 1024**2
"""Payloads that are read at once, or a letter more: 5,000 large ones fit into no memory."""

Letters = list[DeadLetter]
HandedOn = tuple[Sequence[DeadLetter], Sequence[str], str]
"""Letters whose rows are in the logs behind some sinks, and what is known of the rest of their rows."""


class DeadLetters:
    """The dead letters of one state directory. Safe to use from several threads and processes."""

    def __init__(self, path: Path, *, readonly: bool = False, now: Callable[[], float] = time.time) -> None:
        self._store = Store(path, schema=SCHEMA, version=VERSION, upgrades=UPGRADES, readonly=readonly)
        self._now = now

    def add(self, letters: Iterable[DeadLetter]) -> None:
        """Store letters durably; one that is known already keeps its number, time and attempts.

        A letter that was replayed or dropped before is stored again: the batch it came from was
        repeated, and its outcome is about to be recorded as dead-lettered.
        """
        rest = iter(letters)
        while chunk := list(islice(rest, CHUNK)):
            values = [self._values(letter) for letter in chunk]
            with self._store.write() as db:
                db.executemany(UPSERT, values)

    def each(
        self,
        chosen: LetterFilter | None = None,
        *,
        stage: str | None = None,
        source: str | None = None,
        reason: str | None = None,
        statuses: Sequence[Status] = OPEN,
        limit: int | None = None,
        brief: bool = False,
    ) -> Iterator[DeadLetter]:
        """Letters in the order in which they came, a page at a time: there may be more than fit into memory.

        `chosen` says which; or `stage`, `source` and `reason`, as there. `brief` leaves payload and headers
        empty.
        """
        chosen = chosen or LetterFilter(stage, source, reason)
        where, values = chosen.where(statuses)
        columns = BRIEF if brief else "*"
        after, left = 0, sys.maxsize if limit is None else limit
        while left > 0:
            with self._store.read() as db:
                found = db.execute(
                    f"SELECT {columns} FROM letters WHERE {where} AND id > ? ORDER BY id LIMIT ?",
                    [*values, after, CHUNK],
                )
                page, whole = _page(found)
            kept = [letter for letter in map(from_row, page) if chosen.keeps(letter)][:left]
            yield from kept
            if whole and len(page) < CHUNK:
                return
            after, left = page[-1]["id"], left - len(kept)

    def list(
        self,
        chosen: LetterFilter | None = None,
        *,
        stage: str | None = None,
        source: str | None = None,
        reason: str | None = None,
        statuses: Sequence[Status] = OPEN,
        limit: int | None = None,
        brief: bool = False,
    ) -> Letters:
        """`each`, all at once."""
        chosen = chosen or LetterFilter(stage, source, reason)
        return [*self.each(chosen, statuses=statuses, limit=limit, brief=brief)]

    def get(self, event_id: str, stage: str | None = None, *, brief: bool = False) -> Letters:
        """The letters of one event id, whatever their status."""
        columns = BRIEF if brief else "*"
        if stage is None:
            return self._select("event_id = ? ORDER BY id", [event_id], columns)
        return self._select("event_id = ? AND stage = ?", [event_id, stage], columns)

    def with_message_id(self, message_id: str, limit: int) -> Letters:
        """The newest letters of events that came with this id, whatever their status; without payloads."""
        return self._select("message_id = ? ORDER BY id DESC LIMIT ?", [message_id, limit], BRIEF)

    def of_origin(self, source: str, sequence: int) -> Letters:
        """The letters of an event and of all rows made from it, also of those that came from a buffer."""
        event = EventId(source, sequence)
        found = self._select(
            f"(source = ? AND sequence = ?) OR ({OF_BUFFER} AND "
            "(message_id = ? OR message_id GLOB ? OR (message_id GLOB ? AND headers GLOB ?))) ORDER BY id",
            [source, sequence, str(event), f"{event}/*", f"{source}/*", f'*"{OTHERS}"*{sequence}*'],
        )
        return [x for x in found if x.source == source or any(EventId.parse(y).sequence == sequence
                                                                for y in x.made_from)]  # fmt: skip

    def whole(self, letters: Iterable[DeadLetter], *, brief: bool = False) -> Letters:
        """These, and the other open letters of those rows among them that were made of several events."""
        chosen = {letter.key: letter for letter in letters}
        rows = {(x.source, x.stage, x.child) for x in chosen.values() if is_united(x.child)}
        for source, stage in sorted({row[:2] for row in rows}):
            for other in self.each(source=source, stage=stage, brief=brief):
                if (source, stage, other.child) in rows:
                    chosen.setdefault(other.key, other)
        return list(chosen.values())

    def cut_rows(self) -> dict[tuple[str, str, str], str]:
        """Rows made of several events of which one is not there whole, so that none of their letters can be
        replayed: by source, stage and child, which event that is and why."""
        with self._store.read() as db:
            found = db.execute(
                "SELECT event_id, source, sequence, stage, child, incomplete FROM letters "
                f"WHERE incomplete != '' AND instr(child, ?) AND status IN ({', '.join('?' * len(OPEN))}) "
                "ORDER BY id DESC",
                [UNITED, *OPEN],
            ).fetchall()
        return {
            (row["source"], row["stage"], row["child"]):
                f"{EventId(row['source'], row['sequence'])}, which it was also made of: {row['incomplete']}"
            for row in found
            if is_united(row["child"])
        }  # fmt: skip

    def count(self, *, stage: str | None = None, statuses: Sequence[Status] = OPEN) -> int:
        where, values = LetterFilter(stage).where(statuses)
        with self._store.read() as db:
            (number,) = db.execute(f"SELECT count(*) FROM letters WHERE {where}", values).fetchone()
        return int(number)

    def counts(self, statuses: Sequence[Status] = OPEN) -> dict[tuple[str, str], int]:
        """Number of letters by (stage, reason), the most frequent first."""
        where, values = LetterFilter().where(statuses)
        with self._store.read() as db:
            found = db.execute(
                f"SELECT stage, reason, count(*) AS n FROM letters WHERE {where} "
                "GROUP BY stage, reason ORDER BY n DESC, stage, reason",
                values,
            ).fetchall()
        return {(row["stage"], row["reason"]): row["n"] for row in found}

    def by_stage(self) -> Sequence[tuple[str, str, int]]:
        """Source, stage and number of the open letters."""
        where, values = LetterFilter().where(OPEN)
        with self._store.read() as db:
            found = db.execute(
                f"SELECT source, stage, count(*) AS n FROM letters WHERE {where} GROUP BY source, stage",
                values,
            )
            return [(row["source"], row["stage"], row["n"]) for row in found]

    def keys(self, statuses: Sequence[Status] = OPEN, source: str | None = None) -> set[tuple[str, str]]:
        """(event id, stage) of every letter with one of these statuses."""
        where, values = LetterFilter(source=source).where(statuses)
        with self._store.read() as db:
            found = db.execute(f"SELECT event_id, stage FROM letters WHERE {where}", values)
            return {(row["event_id"], row["stage"]) for row in found}

    def request_replay(self, letters: Iterable[DeadLetter]) -> int:
        """Ask for these to be replayed; whoever runs the engine does it. Returns how many were stored.

        Not those that do not hold their whole event, nor rows that such an event is part of. Also those that
        were replayed in one batch with them, if that broke off: the same batch must finish.
        """
        asked = list(letters)
        begun = {(x.source, x.batch) for x in asked if x.batch}
        others = [x for each in sorted(begun) for x in self.of_batch(*each) if x.status == "stored"]
        chosen = self.whole([*asked, *others])
        cut = {(x.source, x.stage, x.child) for x in chosen if x.incomplete and is_united(x.child)}
        fit = [x for x in chosen if not x.incomplete and (x.source, x.stage, x.child) not in cut]
        return self._mark(fit, "replaying", "status = 'stored' AND incomplete = ''")

    def claim(self, letters: Iterable[DeadLetter], batch: str) -> None:
        """These are about to be replayed as one batch, and will be under the same name after a crash."""
        with self._store.write() as db:
            db.executemany(
                "UPDATE letters SET batch = ? WHERE event_id = ? AND stage = ?",
                [(batch, *letter.key) for letter in letters],
            )

    def hand_on(self, letters: Sequence[DeadLetter], sinks: Sequence[str], result: str) -> None:
        """Rows of these are in the logs behind some sinks; their outcome there is not known yet."""
        self.resolve_all((), [(letters, sinks, result)])

    def take_back(self, letter: DeadLetter, sink: str, result: str) -> None:
        """The rows behind one of the sinks are settled, but not those behind the others."""
        left = [name for name in letter.handed if name != sink]
        with self._store.write() as db:
            db.execute(
                "UPDATE letters SET handed = ?, result = ? "
                "WHERE event_id = ? AND stage = ? AND status = 'handed'",
                (json.dumps(left), result, *letter.key),
            )

    def of_batch(self, source: str, batch: str, *, brief: bool = False) -> Letters:
        """The letters that are, or were, replayed as one batch."""
        columns = BRIEF if brief else "*"
        return self._select("source = ? AND batch = ? AND batch != '' ORDER BY id", [source, batch], columns)

    def with_batches(self, letters: Iterable[DeadLetter], *, brief: bool = False) -> Letters:
        """These, and what was to be replayed as one batch with them when a replay was interrupted."""
        chosen = {letter.key: letter for letter in letters}
        for source, batch in sorted({(x.source, x.batch) for x in chosen.values() if x.batch}):
            for other in self.of_batch(source, batch, brief=brief):
                if other.status == "replaying":
                    chosen.setdefault(other.key, other)
        return list(chosen.values())

    def replays_requested(self, limit: int | None = None, *, brief: bool = False) -> Letters:
        """What the engine is asked to replay, oldest first; asked again until each is resolved."""
        return self.list(statuses=("replaying",), limit=limit, brief=brief)

    def withdraw(self, letters: Iterable[DeadLetter]) -> int:
        """Take back a request for replay. Only while no run is alive: it may be working on it. What was
        claimed for a batch stays requested: its rows may be at some sinks, and the same batch must finish."""
        return self._mark(letters, "stored", "status = 'replaying' AND batch = ''")

    def take_for_drop(self, letters: Iterable[DeadLetter]) -> int:
        """Have letters that are replayed, or whose rows are in another log, stored to be dropped, whatever
        becomes of their rows. Only while no run is alive. They keep the name of their batch, under which the
        others that were claimed for it are replayed."""
        return self._mark(letters, "stored", "status IN ('replaying', 'handed')", also=", handed = ''")

    def is_resolved(self, source: str, batch: str) -> bool:
        """Whether it is known what became of a batch of letters: of all of them at once."""
        return any(x.status in ("replayed", "handed") for x in self.of_batch(source, batch, brief=True))

    def resolve(self, event_id: str, stage: str, outcome: Outcome, reason: str = "") -> None:
        """Mark one letter after its replay; the engine calls `close_letters`: it tells the ledger first."""
        self.resolve_all([Resolution(event_id, stage, outcome, reason)])

    def resolve_all(
        self,
        resolutions: Sequence[Resolution],
        handed: Sequence[HandedOn] = (),
        *,
        broken_off: bool = False,
    ) -> None:
        """Mark letters after their replay. Those that went as one batch are marked at once: if a batch is
        replayed again after a kill, none is missing; so it has the same name, and nothing is taken twice.
        `broken_off`: for the same reason those that failed keep the name of their batch."""
        failed = [r for r in resolutions if r.outcome == Outcome.DEAD_LETTERED]
        closed = [r for r in resolutions if r.outcome != Outcome.DEAD_LETTERED]
        with self._store.write() as db:
            db.executemany(
                "UPDATE letters SET status = 'stored', attempts = attempts + 1, at = ?1, "
                "first_reason = CASE WHEN first_reason = '' AND reason != ?2 THEN reason "
                "ELSE first_reason END, reason = ?2, batch = CASE WHEN ?5 THEN batch ELSE '' END, "
                "handed = '', result = '' "
                "WHERE event_id = ?3 AND stage = ?4 AND status IN ('replaying', 'handed')",
                [(self._now(), redact(r.reason), r.event_id, r.stage, broken_off) for r in failed],
            )
            db.executemany(
                "UPDATE letters SET status = 'replayed', at = ?, handed = '', result = ? "
                "WHERE event_id = ? AND stage = ?",
                [(self._now(), redact(r.reason) or r.outcome, r.event_id, r.stage) for r in closed],
            )
            for letters, sinks, result in handed:
                db.executemany(
                    "UPDATE letters SET status = 'handed', handed = ?, result = ? "
                    "WHERE event_id = ? AND stage = ? AND status = 'replaying'",
                    [(json.dumps(list(sinks)), result, *letter.key) for letter in letters],
                )
            _forget_history(db)

    def begin_drop(self, letters: Iterable[DeadLetter]) -> Letters:
        """Claim letters for dropping, so that no replay begins with them; those that can be had."""
        claimed = [letter for letter in self.whole(letters) if letter.status in ("stored", "dropping")]
        self._mark(claimed, "dropping", "status = 'stored'")
        had = self.keys(("dropping",))
        return [letter for letter in claimed if letter.key in had]

    def end_drop(self, letters: Iterable[DeadLetter]) -> int:
        """Close letters that were claimed; `drop_letters` tells the ledger in between."""
        return self._mark(letters, "dropped", "status = 'dropping'", also=f", at = {self._now()!r}")

    def unclaim(self, letters: Iterable[DeadLetter]) -> int:
        """Store letters again that were claimed; only `interrupted_drops` knows which."""
        return self._mark(letters, "stored", "status = 'dropping'")

    @property
    def path(self) -> Path:
        return self._store.path

    def version(self) -> int:
        return self._store.version()

    def close(self) -> None:
        self._store.close()

    def __enter__(self) -> DeadLetters:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _mark(self, letters: Iterable[DeadLetter], status: Status, only: str, also: str = "") -> int:
        rest, number = iter(letters), 0
        while chunk := [letter.key for letter in islice(rest, CHUNK)]:
            with self._store.write() as db:
                number += db.executemany(
                    f"UPDATE letters SET status = '{status}'{also} "
                    f"WHERE event_id = ? AND stage = ? AND {only}",
                    chunk,
                ).rowcount
                _forget_history(db)
        return number

    def _select(self, where: str, values: Sequence[object], columns: str = "*") -> Letters:
        with self._store.read() as db:
            found = db.execute(f"SELECT {columns} FROM letters WHERE {where}", values)
            return [from_row(row) for row in found]

    def _values(self, letter: DeadLetter) -> tuple[object, ...]:
        event = letter.event
        headers = {name: redact(value) for name, value in letter.headers.items()}
        incomplete = letter.incomplete
        if headers != letter.headers:
            masked = sorted(name for name, value in headers.items() if value != letter.headers[name])
            said = f"{MASKED} {', '.join(masked)}"
            incomplete = f"{incomplete}; {said}" if incomplete else said
        return (
            letter.event_id, letter.stage, event.source, event.sequence, event.child, redact(letter.reason),
            letter.at or self._now(), letter.payload, json.dumps(headers), letter.received_at,
            letter.message_id, redact(incomplete), redact(letter.first_reason),
        )  # fmt: skip


def close_letters(
    ledger: Ledger,
    letters: DeadLetters,
    resolutions: Sequence[Resolution],
    further: Sequence[DeadLetter] = (),
    handed: Sequence[HandedOn] = (),
    *,
    broken_off: bool = False,
) -> None:
    """The engine's last step of a replay: account for it, then mark the letters. Repeatable.

    `resolutions`: how each replayed letter ended. `further`: letters of later stages that the replay
    gave rise to; they are stored first and keep their origin dead-lettered. `handed`: letters whose rows are
    in another log; what becomes of them there is not known yet.
    """
    letters.add(further)
    new = [
        Resolution(letter.event_id, letter.stage, Outcome.DEAD_LETTERED, letter.reason) for letter in further
    ]
    ledger.resolve([*new, *resolutions])
    letters.resolve_all(resolutions, handed, broken_off=broken_off)


def drop_letters(ledger: Ledger, letters: DeadLetters, chosen: Sequence[DeadLetter]) -> int:
    """Give up stored letters: their origins count as dropped unless something of them was delivered."""
    number = 0
    for first in range(0, len(chosen), CHUNK):
        with dropping(letters.path):
            part = letters.begin_drop(chosen[first : first + CHUNK])
            dropped = [Resolution(letter.event_id, letter.stage, Outcome.DROPPED) for letter in part]
            ledger.resolve(dropped)
            number += letters.end_drop(part)
    return number


def _page(found: Iterable[sqlite3.Row]) -> tuple[list[sqlite3.Row], bool]:
    """What is read of these at once, and whether that is all."""
    page: list[sqlite3.Row] = []
    size = 0
    for row in found:
        page.append(row)
        if (size := size + len(row["payload"])) > CHUNK_BYTES:
            return page, False
    return page, True


def _forget_history(db: sqlite3.Connection) -> None:
    """Forget the letters that were closed longest ago; not one in whose place another is open: it holds the
    event as it came."""
    statuses = ", ".join(f"'{status}'" for status in OPEN)
    db.execute(
        "DELETE FROM letters WHERE id IN (SELECT id FROM letters WHERE status IN ('replayed', 'dropped') "
        f"ORDER BY at DESC, id DESC LIMIT -1 OFFSET ?) AND NOT ((result GLOB '{RESUBMITTED}*' OR result GLOB "
        f"'{MOVED}*') AND (EXISTS (SELECT 1 FROM letters AS other WHERE other.source = letters.source "
        f"AND other.sequence = letters.sequence AND other.status IN ({statuses})) OR event_id IN "
        f"(SELECT message_id FROM letters WHERE status IN ({statuses}) AND {OF_BUFFER})))",
        (KEEP_CLOSED,),
    )
