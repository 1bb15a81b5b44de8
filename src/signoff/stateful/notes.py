"""What the notes of every step with state begin with: the form that its state has."""

from __future__ import annotations

from signoff.ledger.store import Store


class StateNotes:
    """Notes about the state of one step, in a table `reached` of one row with a column `shape`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def shape(self) -> str:
        """What the state was begun with; '' before."""
        with self._store.read() as db:
            return str(db.execute("SELECT shape FROM reached").fetchone()["shape"])

    def begin(self, shape: str) -> None:
        with self._store.write() as db:
            db.execute("UPDATE reached SET shape = ?", (shape,))

    def close_store(self) -> None:
        self._store.close()
