"""Which parts of a state directory belong together, and whether they still do.

A log numbers the events of a source, and everything else speaks of these numbers: the ledger, the notes of
the intake, those of a link. A part that was moved away, copied in from elsewhere or restored from another
backup speaks of other events by the same numbers: some would count as settled that nobody has delivered.

So the ledger has an identity, made once, and counts the runs that have begun. Every other part carries both
in a *stamp*. A run looks at all of them before anything is received, then stamps them with its own number:

    ledger: run n is about to begin ──► every part: n ──► ledger: run n has begun, with these parts

A kill in between leaves parts with the number before and parts with the new one, several in a row some with
each of theirs: all of these are right then, and only then. A number that was begun with is not used again, so
a ledger of that moment does not take parts for its own that have gone on since.

What has no stamp, and the ledger has never stamped, is new, or of a release that knew no stamps; it is
adopted, if what the ledger knows of it is there.
"""

from __future__ import annotations

import errno
import json
import logging
import sqlite3
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from signoff.durable import write_whole
from signoff.engine.state_dir.copies import Place, is_copy, read_place, refuse_shared, write_place
from signoff.errors import LogError, StateError
from signoff.ledger.audit import Finding, LogView, OpenLog
from signoff.ledger.compaction import KEY_INDEX
from signoff.ledger.ledger import Ledger
from signoff.ledger.outcome import BUFFER
from signoff.ledger.store import no_room
from signoff.link.job_sink import INVOKER
from signoff.log.disk_proof import STAMP
from signoff.pipeline.model import NodeConfig
from signoff.private import make_private

logger = logging.getLogger(__name__)

MIXED, LETTERS_MIXED = "state-mixed", "letters-mixed"
_FOREIGN = "it comes from another state directory"
_LOOKS = 5
_PARTS = ("log", "intake", "links")
"""Directories of the state directory; each part is a directory in one of them."""
LETTERS = "dead_letters.db"
_FILES = (LETTERS, KEY_INDEX)
_TABLES = """
CREATE TABLE IF NOT EXISTS identity (state TEXT NOT NULL, run INTEGER NOT NULL, beginning INTEGER);
CREATE TABLE IF NOT EXISTS stamped (part TEXT PRIMARY KEY) WITHOUT ROWID
"""
"""Not part of the ledger's schema, which has a version: a release that does not know them lets them be."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """To which state a part belongs, and as of which run."""

    state: str
    run: int


@dataclass(frozen=True, slots=True)
class Identity:
    """What the ledger says of itself."""

    state: str
    run: int
    beginning: int | None
    """The last start that had begun to stamp. It has not come to its end, nor has any since `run`."""
    stamped: frozenset[str]
    former: str | None = None
    """Of the directory that this one is a copy of, while parts may still carry it."""

    def accepts(self, stamp: Stamp) -> bool:
        known = stamp.state == self.state or stamp.state == self.former
        return known and self.run <= stamp.run <= (self.beginning or self.run)


class StateIdentity:
    """The parts of one state directory."""

    def __init__(self, state: Path, ledger: Ledger, open_log: OpenLog) -> None:
        self._state, self._ledger, self._open_log = state, ledger, open_log
        self._place: Place | None = None
        self._is_copy = False

    def misfits(self, sources: Collection[str]) -> list[Finding]:
        """What does not belong to the ledger. `sources`: those of the pipeline as it is now."""
        for _ in range(_LOOKS):
            identity = self._identity()
            found = self._misfits(identity, sources)
            if not found or identity == self._identity():  # if not, a run begins this moment
                break
        return found

    def _misfits(self, identity: Identity | None, sources: Collection[str]) -> list[Finding]:
        found = self._parts()
        known = identity.stamped if identity else frozenset()
        findings = list[Finding]()
        for part in sorted((known | found) - {KEY_INDEX}):  # see `_put_aside_keys`
            name = _name(part)
            if (
                part != LETTERS
                and name not in sources
                and not name.endswith((BUFFER, INVOKER))
                and not self._owes(name)
            ):
                continue  # of a source that is gone, and owes nothing
            if (wrong := self._wrong(part, identity)) is not None:
                code = LETTERS_MIXED if part == LETTERS and wrong != _FOREIGN else MIXED
                findings.append(Finding(name, code, f"{self._state / part}: {wrong}"))
        told = {finding.source for finding in findings}
        names = sorted({*sources, *self._ledger.sources()} - told)
        return findings + [finding for name in names for finding in self._misplaced(name, sources)]

    def check(self, sources: Collection[str]) -> None:
        """Raises StateError, with what to do, unless everything belongs together."""
        found = self.misfits(sources)
        for finding in found:
            if finding.code == LETTERS_MIXED:  # nothing that is received from now on suffers by it
                logger.warning("%s; signoff audit FILE says which letters are gone", finding.text)
        if found := [finding for finding in found if finding.code == MIXED]:
            what = "\n".join(f"  {finding.text}" for finding in found)
            names = dict.fromkeys(finding.source for finding in found)
            letters = names.pop(LETTERS, 0) is None
            ways = "; ".join(f"signoff sources reset FILE {name}" for name in names)
            raise StateError(
                f"[state-mixed] parts of {self._state} do not belong together; nothing was received:\n"
                f"{what}\nput back what was there together, from one backup"
                + (
                    f"; or give up what cannot be known any more, and go on with new numbers: {ways}"
                    if ways
                    else ""
                )
                + (f"; move {LETTERS} away to begin with none" if letters else "")
            )
        self._put_aside_keys()

    def _put_aside_keys(self) -> None:
        """An index of keys that is not this ledger's would drop events as repeated that never came before.
        Without any, events are at worst delivered once more."""
        path, identity = self._state / KEY_INDEX, self._identity()
        if not path.exists():
            return
        wrong = self._wrong(KEY_INDEX, identity)
        if wrong is None and identity is not None and _read_stamp(path) is None:
            wrong = "nobody knows to which state it belongs"
        if wrong is None:
            return
        number = 1
        while (aside := path.with_name(f"{KEY_INDEX}.aside-{number}")).exists():
            number += 1
        for suffix in ("-wal", "-shm", ""):  # a journal that is left would be taken for that of the next one
            with suppress(FileNotFoundError):
                path.with_name(path.name + suffix).rename(aside.with_name(aside.name + suffix))
        logger.warning(
            "%s: %s; it was put aside as %s, and every dedupe begins anew: what repeats an event from before "
            "is delivered once more", path, wrong, aside.name,
        )  # fmt: skip

    def refuse_copy(self, base: Path, nodes: Mapping[str, NodeConfig]) -> None:
        """Raises StateError if this is a copy that shares a place with its original (see `copies`).

        `nodes` are those that reach outside, in a project at `base`.
        """
        now, identity = Place.of(self._state, base), self._identity()
        with self._ledger.store.read() as db:
            noted, _ = read_place(db)
        self._place = now
        if identity is not None and noted is not None and is_copy(noted, now, identity.state):
            refuse_shared(noted, now, nodes)
            self._is_copy = True

    def begin(self, sources: Iterable[str]) -> None:
        """A run begins: stamp everything. Also for sources that have nothing yet."""
        try:
            for source in sources:
                for kind in ("log", "intake"):
                    make_private(self._state / kind / source)
            self._stamp_all()
        except (OSError, StateError) as error:
            if not no_room(error):
                raise
            logger.warning(
                "%s: the disk is full; the identity files of this run could not be written yet", self._state
            )

    def stamp(self, part: str) -> None:
        """A part was made anew, and belongs here now."""
        with self._ledger.store.write() as db:
            _make_tables(db)
            identity = _read_identity(db) or _new_identity(db)
        _write_stamp(self._state / part, Stamp(identity.state, identity.run))
        with self._ledger.store.write() as db:
            db.execute("INSERT OR IGNORE INTO stamped VALUES (?)", (part,))

    # -- looking

    def _wrong(self, part: str, identity: Identity | None) -> str | None:
        path = self._state / part
        stamp = _read_stamp(path)
        if identity is None:
            if stamp is None:
                return None
            return (
                "it belongs to another ledger.db than the one that is here, which is new or of an old release"
            )
        if stamp is None:
            if part not in identity.stamped:
                return None
            gone = "was replaced" if path.exists() else "was moved away or removed"
            return f"what the ledger knows {gone}"
        if identity.accepts(stamp):
            return None
        if stamp.state not in (identity.state, identity.former):
            return _FOREIGN
        older = "it is older than the ledger" if stamp.run < identity.run else "the ledger is older than it"
        return f"{older}: it was last used by run {stamp.run}, the ledger by run {identity.run}"

    def _misplaced(self, source: str, sources: Collection[str]) -> Iterator[Finding]:
        """What the numbers say, whatever the stamps do."""
        path, known = self._state / "log" / source, self._ledger.books(source).next
        log, needed = self._open_log(path), self._ledger.needed_from(source)
        if not known or (source not in sources and not source.endswith(BUFFER) and needed >= known):
            return
        try:
            end = _end(log, known)
        except LogError:
            return  # damaged: whoever opens it says how
        if end < known:
            yield Finding(
                source, MIXED, f"{path}: it ends at {end}, but the ledger knows events up to {known}"
            )
        elif log.first() > needed:
            text = f"{path}: it begins at {log.first()}, but events from {needed} on are not settled"
            yield Finding(source, MIXED, text)

    def _owes(self, source: str) -> bool:
        books = self._ledger.books(source)
        try:
            return books.owed > 0 or self._open_log(self._state / "log" / source).head() > books.next
        except LogError:
            return True  # as far as anybody can know

    def _parts(self) -> set[str]:
        found = {f"{kind}/{path.name}" for kind in _PARTS for path in _directories(self._state / kind)}
        return found | {name for name in _FILES if (self._state / name).exists()}

    def _identity(self) -> Identity | None:
        with self._ledger.store.read() as db:
            return _read_identity(db)

    # -- stamping

    def _stamp_all(self) -> None:
        copy = self._is_copy
        with self._ledger.store.write() as db:
            _make_tables(db)
            identity = _read_identity(db) or _new_identity(db)
            run = max(identity.run, identity.beginning or 0) + 1
            state = uuid.uuid4().hex if copy else identity.state
            db.execute("UPDATE identity SET state = ?, beginning = ?", (state, run))
            if self._place is not None:
                write_place(db, self._place, identity.state if copy else identity.former)
            identity = replace(identity, state=state)
        parts = self._parts()
        for part in sorted(parts):
            _write_stamp(self._state / part, Stamp(identity.state, run))
        with self._ledger.store.write() as db:
            db.execute("UPDATE identity SET run = ?, beginning = NULL", (run,))
            if self._place is not None:
                write_place(db, self._place, None)
            db.execute("DELETE FROM stamped")
            db.executemany("INSERT INTO stamped VALUES (?)", [(part,) for part in parts])
        self._is_copy = False


def _name(part: str) -> str:
    """The source, or buffer, that a part is of; the file of the letters is of all."""
    return part.partition("/")[2] or part


def _end(log: LogView, known: int) -> int:
    head = log.head()
    return head if head >= known else max(head, log.scan())  # the head file may lag after a power cut


def _directories(path: Path) -> list[Path]:
    try:
        return [each for each in path.iterdir() if each.is_dir()]
    except FileNotFoundError:
        return []


def _make_tables(db: sqlite3.Connection) -> None:
    for statement in _TABLES.split(";"):
        db.execute(statement)


def _new_identity(db: sqlite3.Connection) -> Identity:
    made = Identity(uuid.uuid4().hex, 0, None, frozenset())
    db.execute("INSERT INTO identity VALUES (?, ?, NULL)", (made.state, made.run))
    return made


def _read_identity(db: sqlite3.Connection) -> Identity | None:
    if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'identity'").fetchone():
        return None
    row = db.execute("SELECT state, run, beginning FROM identity").fetchone()
    if row is None:
        return None
    stamped = frozenset(part for (part,) in db.execute("SELECT part FROM stamped"))
    return Identity(row["state"], row["run"], row["beginning"], stamped, read_place(db)[1])


def _read_stamp(path: Path) -> Stamp | None:
    """The stamp of a part; None where there is none that can be read."""
    with suppress(FileNotFoundError, NotADirectoryError, ValueError, TypeError, sqlite3.DatabaseError):
        if path.name in _FILES:
            return _read_file(path)
        content = json.loads((path / STAMP).read_bytes())
        return Stamp(str(content["state"]), int(content["run"]))
    return None


def _write_stamp(path: Path, stamp: Stamp) -> None:
    if path.name in _FILES:
        _write_file(path, stamp)
        return
    write_whole(path / STAMP, json.dumps({"state": stamp.state, "run": stamp.run}).encode())


def _read_file(path: Path) -> Stamp | None:
    if not path.exists():
        return None
    with closing(sqlite3.connect(path, timeout=30)) as db:
        if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'identity'").fetchone():
            return None
        row = db.execute("SELECT state, run FROM identity").fetchone()
        return Stamp(row[0], row[1]) if row else None


def _write_file(path: Path, stamp: Stamp) -> None:
    with closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as db:
        try:
            db.execute("BEGIN IMMEDIATE")
            _make_tables(db)
            db.execute("DELETE FROM identity")
            db.execute("INSERT INTO identity VALUES (?, ?, NULL)", (stamp.state, stamp.run))
            db.execute("COMMIT")
        except sqlite3.OperationalError as error:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise OSError(errno.ENOSPC if no_room(error) else errno.EIO, f"{path}: {error}") from error
