"""How far event time has come at one window step: its watermark, kept on disk.

A window is closed when its end is at or before the *mark*. Invariants:

- The mark only grows, and is on disk before anybody acts on it.
- Every batch is stamped with the mark of the moment it was first opened, and has the same stamp whenever it
  is done again, also for one sink after the other: so the same events of it are late.
- What Spark is told, in the order of the link's log and behind the rows it was found from, does not pass the
  mark, nor the stamp of a batch that may still hand on rows. Later batches have later stamps. So no row that
  was in time when its batch began meets a window that Spark has closed since, whatever other sources, other
  batches and kills do; and batches of several sources that never end all at once hold up nothing.

Times are microseconds since the epoch; a mark is a whole number of milliseconds, as Spark's watermark is.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from signoff.ledger.store import Store
from signoff.sinks.contract import BatchRef
from signoff.stateful.notes import StateNotes
from signoff.transforms.window.watermark_rule import WatermarkRule

_VERSION = 1
_SCHEMA = """
CREATE TABLE seen (
    source TEXT PRIMARY KEY, latest INTEGER NOT NULL, tail TEXT NOT NULL, active REAL NOT NULL
);
CREATE TABLE stamps (
    source TEXT NOT NULL, start INTEGER NOT NULL, replay INTEGER NOT NULL, mark INTEGER,
    open INTEGER NOT NULL DEFAULT 1, PRIMARY KEY (source, start, replay)
);
CREATE TABLE reached (
    mark INTEGER, told INTEGER, last_end INTEGER, given INTEGER, shape TEXT NOT NULL
);
INSERT INTO reached VALUES (NULL, NULL, NULL, NULL, '');
CREATE TABLE late (
    source TEXT NOT NULL, start INTEGER NOT NULL, replay INTEGER NOT NULL, keys TEXT NOT NULL,
    number INTEGER NOT NULL, PRIMARY KEY (source, start, replay, keys)
);
CREATE TABLE late_before (keys TEXT PRIMARY KEY, number INTEGER NOT NULL)
"""

_BATCH = "source = ? AND start = ? AND replay = ?"
_MS = 1000


@dataclass(frozen=True)
class Seen:
    """What a batch says of time: of the events that were in time."""

    latest: int
    """The latest time."""
    tail: tuple[tuple[int, int], ...]
    """Sequence and time of the newest events, as many as `WatermarkRule.last_events`."""
    last_end: int
    """The latest end of their windows."""


class Watermarks(StateNotes):
    """The mark of one window step. The driver alone writes it; others may read."""

    def __init__(
        self,
        path: Path,
        progress: WatermarkRule,
        sources: Iterable[str],
        *,
        readonly: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock`: for silence, which must not be one that somebody can set."""
        super().__init__(Store(path, schema=_SCHEMA, version=_VERSION, readonly=readonly))
        self._progress, self._sources, self._clock = progress, frozenset(sources), clock
        self._began = clock()
        self._active: dict[str, float] = {}
        """When a source has last sent something, by that clock; a new process waits anew."""

    @property
    def idle_after(self) -> float | None:
        return self._progress.idle_after

    @property
    def mark(self) -> int | None:
        """Windows that end here or before are closed for new batches; None: none is."""
        with self._store.read() as db:
            return _mark(db)

    @property
    def told(self) -> int | None:
        """The last mark that was put into the link's log."""
        with self._store.read() as db:
            found = db.execute("SELECT told FROM reached").fetchone()["told"]
        return None if found is None else int(found)

    def stamp(self, batch: BatchRef) -> int | None:
        """The mark that a batch is done with: that of its first time."""
        with self._store.write() as db:
            db.execute(
                "INSERT OR IGNORE INTO stamps (source, start, replay, mark) VALUES (?, ?, ?, ?)",
                (*_names(batch), _mark(db)),
            )
            row = db.execute(f"SELECT mark FROM stamps WHERE {_BATCH}", _names(batch)).fetchone()
            return None if row["mark"] is None else int(row["mark"])

    def stamp_at(self, source: str, sequence: int) -> int | None:
        """The stamp of the batch that an event is in; the mark itself if it has none."""
        with self._store.read() as db:
            row = db.execute(
                "SELECT mark FROM stamps WHERE source = ? AND start <= ? AND replay = 0 "
                "ORDER BY start DESC LIMIT 1",
                (source, sequence),
            ).fetchone()
            return _mark(db) if row is None else row["mark"]

    def saw(self, batch: BatchRef, seen: Seen) -> None:
        """Rows of a batch have been handed on. May be repeated."""
        with self._store.write() as db:
            known = db.execute("SELECT * FROM seen WHERE source = ?", (batch.source,)).fetchone()
            latest = seen.latest if known is None else max(known["latest"], seen.latest)
            tail = seen.tail if known is None else (*map(tuple, json.loads(known["tail"])), *seen.tail)
            kept = sorted(set(tail))[-(self._progress.last_events or 0) :] if tail else []
            db.execute(
                "INSERT OR REPLACE INTO seen VALUES (?, ?, ?, ?)",
                (batch.source, latest, json.dumps(kept), 0.0),
            )
            db.execute("UPDATE reached SET last_end = max(coalesce(last_end, 0), ?)", (seen.last_end,))
        self._active[batch.source] = self._clock()

    def close(self, batch: BatchRef) -> None:
        """A batch will hand on nothing more. Its stamp stays: those who read the late events may still have
        to be given theirs. May be repeated, and is cheap then."""
        if self._known(batch, "open"):
            with self._store.write() as db:
                db.execute(f"UPDATE stamps SET open = 0 WHERE {_BATCH}", _names(batch))

    def forget(self, batch: BatchRef) -> None:
        """A batch will not be done again. May be repeated, and is cheap then."""
        if self._known(batch):
            with self._store.write() as db:
                db.execute(f"DELETE FROM stamps WHERE {_BATCH}", _names(batch))

    def _known(self, batch: BatchRef, condition: str = "TRUE") -> bool:
        with self._store.read() as db:
            query = f"SELECT 1 FROM stamps WHERE {_BATCH} AND {condition}"
            return db.execute(query, _names(batch)).fetchone() is not None

    def forget_others(self, source: str, unfinished: Iterable[BatchRef]) -> None:
        """Forget the batches of a source that an earlier run has left, but for these; and those of sources
        that come to the window no more, of which nobody else would."""
        kept = {batch.start for batch in unfinished}
        with self._store.write() as db:
            for name, start, replay in db.execute("SELECT source, start, replay FROM stamps").fetchall():
                left = name == source and (replay or start not in kept)
                if left or name not in self._sources:
                    db.execute(f"DELETE FROM stamps WHERE {_BATCH}", (name, start, replay))

    def silent(self) -> dict[str, float]:
        """The sources that have sent the step nothing for as long as it waits for them, and since when."""
        return self._silent()

    def advance(self, taken: Mapping[str, int] | None = None) -> None:
        """Let the mark follow what was seen.

        `taken`: for sources that were silent, up to where their events had come then, all of which are taken.
        If none of them is on its way to the step any more, nobody waits for the source; and if that is so for
        all sources, windows are closed that wait for nothing else.
        """
        with self._store.read() as db:
            quiet = {
                source
                for source in self._silent().keys() & (taken or {}).keys()
                if not self._on_their_way(db, source, (taken or {})[source])
            }
            reached, found = _mark(db), self._found(db, quiet)
            if quiet and quiet >= self._sources:
                last_end = db.execute("SELECT last_end FROM reached").fetchone()["last_end"]
                found = last_end if found is None or (last_end or 0) > found else found
        if found is not None and (reached is None or found - found % _MS > reached):
            self.reach(found - found % _MS)

    def reach(self, mark: int) -> None:
        """Batches that begin from now on find the windows up to here closed."""
        with self._store.write() as db:
            db.execute("UPDATE reached SET mark = max(coalesce(mark, ?), ?)", (mark, mark))

    def reach_last_end(self) -> None:
        """Close every window that events were handed on for, as if all sources had been silent."""
        with self._store.read() as db:
            last_end = db.execute("SELECT last_end FROM reached").fetchone()["last_end"]
        if last_end is not None:
            self.reach(last_end - last_end % _MS)

    def to_tell(self) -> int | None:
        """The mark that Spark is to be told; None if it knows all that it may know."""
        with self._store.read() as db:
            mark, told = db.execute("SELECT mark, told FROM reached").fetchone()
            stamps = [stamp for (stamp,) in db.execute("SELECT mark FROM stamps WHERE open").fetchall()]
        if mark is None or None in stamps:
            return None
        found = min([mark, *stamps])
        return found if told is None or found > told else None

    def tell(self, mark: int) -> None:
        """The mark is in the link's log."""
        with self._store.write() as db:
            db.execute("UPDATE reached SET told = max(coalesce(told, ?), ?)", (mark, mark))

    def gave(self, upto: int) -> None:
        """Spark has given out the results of all windows that end here or before."""
        with self._store.write() as db:
            db.execute("UPDATE reached SET given = ?", (upto,))

    def give_up(self) -> None:
        """What is in open windows is given up; the next state begins with none."""
        with self._store.write() as db:
            db.execute("UPDATE reached SET last_end = mark, given = mark, shape = ''")
            db.execute("DELETE FROM stamps")

    @property
    def holds_events(self) -> bool:
        """Whether windows are open, or closed ones not handed on."""
        return self.open_windows or not self.all_given

    @property
    def all_given(self) -> bool:
        """Whether the results of all closed windows have been handed on."""
        with self._store.read() as db:
            row = db.execute("SELECT * FROM reached").fetchone()
        return row["mark"] is None or (row["given"] is not None and row["given"] >= row["mark"])

    @property
    def open_windows(self) -> bool:
        """Whether events were handed on whose windows are not closed yet."""
        with self._store.read() as db:
            row = db.execute("SELECT * FROM reached").fetchone()
        return row["last_end"] is not None and (row["mark"] is None or row["mark"] < row["last_end"])

    # -- what was late

    def count_late(self, batch: BatchRef, numbers: Mapping[str, int]) -> None:
        """How many events of a batch were late, by keys. May be repeated: what is said last counts."""
        with self._store.write() as db:
            db.execute(f"DELETE FROM late WHERE {_BATCH}", _names(batch))
            db.executemany(
                "INSERT INTO late VALUES (?, ?, ?, ?, ?)",
                [(*_names(batch), keys, number) for keys, number in numbers.items()],
            )

    def late(self) -> dict[str, int]:
        """How many events were late, by keys."""
        with self._store.read() as db:
            rows = db.execute(
                "SELECT keys, sum(number) AS number FROM "
                "(SELECT keys, number FROM late UNION ALL SELECT keys, number FROM late_before) GROUP BY keys"
            ).fetchall()
        return {row["keys"]: row["number"] for row in rows}

    def fold_late(self, source: str, upto: int) -> None:
        """Batches below will not come again: what they counted need not be told apart."""
        with self._store.write() as db:
            rows = db.execute("SELECT * FROM late WHERE source = ? AND start < ?", (source, upto)).fetchall()
            for row in rows:
                db.execute(
                    "INSERT INTO late_before VALUES (?, ?) "
                    "ON CONFLICT (keys) DO UPDATE SET number = number + excluded.number",
                    (row["keys"], row["number"]),
                )
            db.execute("DELETE FROM late WHERE source = ? AND start < ?", (source, upto))

    # -- behind them

    def _found(self, db: sqlite3.Connection, quiet: Collection[str]) -> int | None:
        """Where the slowest source is; one of several that is quiet is not waited for."""
        rows = {row["source"]: row for row in db.execute("SELECT * FROM seen").fetchall()}
        places = []
        for source in self._sources:
            if source in quiet and len(self._sources) > 1:
                continue
            if source not in rows or (place := self._place(rows[source])) is None:
                return None
            places.append(place)
        return min(places, default=None)

    def _place(self, row: sqlite3.Row) -> int | None:
        """How far one source has come; None where all was seen before `last_events` was asked for."""
        if self._progress.last_events is None:
            return int(row["latest"]) - self._progress.lateness
        tail = [int(moment) for _, moment in json.loads(row["tail"])]
        return min(tail) - self._progress.lateness if tail else None

    def _silent(self) -> dict[str, float]:
        idle, now = self._progress.idle_after, self._clock()
        active = {source: self._active.get(source, self._began) for source in self._sources}
        return {source: at for source, at in active.items() if idle is not None and now - at > idle}

    @staticmethod
    def _on_their_way(db: sqlite3.Connection, source: str, upto: int) -> bool:
        """Whether a batch with events below may still hand some on."""
        query = "SELECT 1 FROM stamps WHERE open AND source = ? AND start < ? LIMIT 1"
        return db.execute(query, (source, upto)).fetchone() is not None


def _names(batch: BatchRef) -> tuple[str, int, int]:
    return batch.source, batch.start, batch.replay


def _mark(db: sqlite3.Connection) -> int | None:
    found = db.execute("SELECT mark FROM reached").fetchone()["mark"]
    return None if found is None else int(found)
