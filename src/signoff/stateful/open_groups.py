"""Which groups of a fold are open, and until when: what the driver must know without reading Spark's state.

A deadline is the time of the batch that began the group, plus the timeout; so all groups that one batch began
are one number here. A batch is noted before the ledger knows it, and once, however often it is done.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from signoff.ledger.store import Store
from signoff.link.handover import LinkPlace
from signoff.stateful.notes import StateNotes
from signoff.transforms.fold.groups import NEVER

_VERSION = 1
_SCHEMA = """
CREATE TABLE open (deadline INTEGER PRIMARY KEY, groups INTEGER NOT NULL);
CREATE TABLE reached (batch INTEGER NOT NULL, shape TEXT NOT NULL);
INSERT INTO reached VALUES (-1, '')
"""


class OpenGroups(StateNotes):
    """The open groups of one fold. The driver alone writes it; others may read."""

    def __init__(self, path: Path, *, readonly: bool = False) -> None:
        super().__init__(Store(path, schema=_SCHEMA, version=_VERSION, readonly=readonly))

    def note(self, batch: int, changes: Mapping[int, int]) -> None:
        """By how many the groups with a deadline became more. `batch`: the number Spark gave it."""
        with self._store.write() as db:
            (reached,) = db.execute("SELECT batch FROM reached").fetchone()
            if batch == reached:
                return
            if batch < reached:  # Spark counts from the beginning: it has state of its own, and that is empty
                db.execute("DELETE FROM open")
            for deadline, number in changes.items():
                db.execute(
                    "INSERT INTO open VALUES (?, ?) "
                    "ON CONFLICT (deadline) DO UPDATE SET groups = groups + excluded.groups",
                    (deadline, number),
                )
            db.execute("DELETE FROM open WHERE groups <= 0")
            db.execute("UPDATE reached SET batch = ?", (batch,))

    def forget(self) -> None:
        """There are none, and Spark counts from the beginning."""
        with self._store.write() as db:
            db.execute("DELETE FROM open")
            db.execute("UPDATE reached SET batch = -1")

    @property
    def number(self) -> int:
        with self._store.read() as db:
            return int(db.execute("SELECT coalesce(sum(groups), 0) FROM open").fetchone()[0])

    @property
    def next_deadline(self) -> int | None:
        """When the next of them is over; None if there is none that ends by itself."""
        with self._store.read() as db:
            found = db.execute("SELECT min(deadline) FROM open WHERE deadline <> ?", (NEVER,)).fetchone()[0]
        return None if found is None else int(found)


def open_groups_path(place: LinkPlace) -> Path:
    return place.notes / "groups.db"
