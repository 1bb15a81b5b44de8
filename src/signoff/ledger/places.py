"""Where sinks keep their batches, if a batch replaces what has its name there: the ledger follows the place.

A name says whose rows a batch owes, a place says whose files it would replace. So before the first batch of a
run they are compared with those of the last run:

    a new name at the place of one that is gone    the sink was renamed: it has done, and owes, what that had
    any other sink at the place of another one     of batches that are open it gets what it is owed by name,
                                                   published under numbers: it replaces nothing of the other

A place that nobody had before needs nothing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

from signoff.ledger.batch_state import Wait, sink_of
from signoff.ledger.sink_rows import WAITS, debtor, number


def settle_places(db: sqlite3.Connection, source: str, places: Mapping[str, str]) -> dict[str, str]:
    """See `Ledger.settle_places`."""
    known = dict(db.execute("SELECT sink, place FROM places WHERE source = ?", (source,)).fetchall())
    if known == places:
        return {}
    had = {place: sink for sink, place in known.items()}
    renamed: dict[str, str] = {}
    for sink, place in places.items():
        before = had.get(place, sink)
        if before == sink:
            continue
        if before not in places and sink not in known:
            renamed[before] = sink
            _rename(db, source, before, sink)
        else:
            _owe_by_name(db, source, sink)
    db.execute("DELETE FROM places WHERE source = ?", (source,))
    db.executemany(
        "INSERT INTO places VALUES (?, ?, ?)", [(source, sink, place) for sink, place in places.items()]
    )
    return renamed


def _rename(db: sqlite3.Connection, source: str, old: str, new: str) -> None:
    query = f"SELECT DISTINCT sink FROM batch_sinks WHERE source = ? AND (sink = ? OR {WAITS})"
    for row in db.execute(query, (source, old)).fetchall():
        who = debtor(row["sink"])
        if sink_of(who) == old:
            name = str(Wait(new, who.step)) if isinstance(who, Wait) else new
            db.execute(
                "UPDATE OR IGNORE batch_sinks SET sink = ? WHERE source = ? AND sink = ?",
                (name, source, row["sink"]),
            )


def _owe_by_name(db: sqlite3.Connection, source: str, sink: str) -> None:
    """What a sink is to be given of open batches as a whole it is to be given by the events that are owed."""
    for row in db.execute(
        "SELECT start, owed FROM batches WHERE source = ? AND owed_count > 0", (source,)
    ).fetchall():
        db.execute(
            "INSERT INTO batch_sinks (source, start, sink, done, attempts, error, owed) "
            "VALUES (?, ?, ?, 0, 0, '', ?) ON CONFLICT DO UPDATE SET owed = excluded.owed, attempts = 0, "
            "error = '', owed_children = NULL, rows_of = NULL WHERE NOT done AND owed IS NULL",
            (source, row["start"], sink, row["owed"]),
        )
        number(db, source, row["start"], sink)
