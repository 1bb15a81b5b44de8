"""Whether a state directory is a copy of one that is still there, and what that means.

A copy numbers its events as its original does. Where both reach the same queue, table or directory, events of
the one take the place of others of the other: acknowledged, and lost. So a copy that shares a place with its
original does not run while that exists. A copy of a whole project, of which every place is its own, goes on
by itself, with an identity of its own.

How it is told: the ledger notes where it is (path, inode, host) at each run. One that is elsewhere is a copy
if the noted place still holds another ledger of the same identity, whatever the host is called by now; if it
does not, the directory was moved or restored. Unless it is the copy that is in the noted place: the same
inode as noted, on the same file system, is the original, renamed. Nobody can look at another machine: then it
is said where the state was used last.
"""

from __future__ import annotations

import logging
import os
import platform
import sqlite3
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from signoff.errors import StateError
from signoff.ledger.ledger import Ledger
from signoff.pipeline.model import NodeConfig

logger = logging.getLogger(__name__)

TABLE = """
CREATE TABLE IF NOT EXISTS place (
    path TEXT NOT NULL, base TEXT NOT NULL, inode INTEGER NOT NULL, host TEXT NOT NULL,
    former TEXT  -- the identity of the original, until every part of a copy has the new one
)
"""
LEDGER = "ledger.db"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a state directory is, or was when it was used last."""

    path: str
    base: str
    inode: int
    host: str

    @classmethod
    def of(cls, state: Path, base: Path) -> Place:
        inode = os.stat(state / LEDGER).st_ino  # noqa: PTH116
        return cls(str(state.resolve()), str(base.resolve()), inode, platform.node())


def is_copy(noted: Place | None, now: Place, identity: str) -> bool:
    """Whether the original is another directory that is still there."""
    if noted is None or noted.path == now.path:
        return False
    if _identity_in(Path(noted.path)) != identity:
        if noted.host != now.host:
            logger.warning(
                "%s was last used on %s, in %s, and is taken to have moved here; if a run still uses it "
                "there, stop one of both: their events have the same ids", now.path, noted.host, noted.path,
            )  # fmt: skip
        return False
    there, here = _ledger_at(noted.path), _ledger_at(now.path)
    if there == here:  # by another way
        return False
    # Numbers of inodes are of one file system: on another, or in a snapshot, a copy may have the same.
    renamed = noted.inode == now.inode and there[0] == here[0]
    return not renamed


def _ledger_at(state: str) -> tuple[int, int]:
    """Device and inode."""
    found = os.stat(Path(state) / LEDGER)  # noqa: PTH116
    return found.st_dev, found.st_ino


def refuse_shared(noted: Place, now: Place, nodes: Mapping[str, NodeConfig]) -> None:
    """Raises StateError if a copy of a state directory would share a place with its original."""
    if noted.base == now.base:
        shared = "its pipeline is the same"
    else:
        names = [name for name, config in nodes.items() if not config.belongs_to_project(Path(now.base))]
        if not names:
            logger.info("%s is a copy of %s and goes on by itself", now.path, noted.path)
            return
        shared = f"these are outside of the project: {', '.join(names)}"
    raise StateError(
        f"[state-copied] {now.path} is a copy of {noted.path}, which is still there; nothing was received. "
        f"Both would reach the same places under the same event ids ({shared}). If the original is not used "
        "any more, remove or rename it and run again; to use both, give this pipeline a new state directory "
        "and its sources names of their own"
    )


def last_used_elsewhere(state: Path, ledger: Ledger) -> str:
    """Where a state directory was when it was used last, if that is not where it is: it was copied, moved or
    restored, and no run has begun since. '' if it was used here, or never."""
    if not (state / LEDGER).is_file():
        return ""
    with ledger.store.read() as db:
        noted, _ = read_place(db)
    return "" if noted is None or noted.path == str(state.resolve()) else noted.path


def read_place(db: sqlite3.Connection) -> tuple[Place | None, str | None]:
    """What is noted, and the identity of the original that some parts may still have."""
    if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'place'").fetchone():
        return None, None
    row = db.execute("SELECT path, base, inode, host, former FROM place").fetchone()
    return (Place(*row[:4]), row[4]) if row else (None, None)


def write_place(db: sqlite3.Connection, place: Place, former: str | None) -> None:
    db.execute(TABLE)
    db.execute("DELETE FROM place")
    db.execute(
        "INSERT INTO place VALUES (?, ?, ?, ?, ?)",
        (place.path, place.base, place.inode, place.host, former),
    )


def _identity_in(state: Path) -> str | None:
    """The identity of the state directory that is there; None if there is none that can be read."""
    with suppress(OSError, sqlite3.Error):
        path = state / LEDGER
        if path.is_file():
            with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=5)) as db:
                row = db.execute("SELECT state FROM identity").fetchone()
                return None if row is None else str(row[0])
    return None
