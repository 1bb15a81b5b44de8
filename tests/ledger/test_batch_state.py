"""The states of a sink: each is read as it was written, also from rows of an earlier release."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pytest
from pyroaring import BitMap64

from signoff.ledger.batch_state import Done, HandedOn, OwesAll, OwesRows, SinkState, Untried, Wait, sink_of
from signoff.ledger.outcome import RowRef
from signoff.ledger.schema import SCHEMA
from signoff.ledger.sequences import to_bytes
from signoff.ledger.sink_rows import load_states, save_sinks

ROWS = (RowRef(3), RowRef(4, "1/a"))
LEFT = BitMap64([5, 6])
TRIES = {"attempts": 3, "error": "down", "since": 900.0}

STATES: list[SinkState] = [
    Untried(),
    Untried(ROWS),
    OwesAll(attempts=1),
    OwesAll(BitMap64([3, 4]), '[[4, "1/a"]]', LEFT, **TRIES),
    OwesAll(BitMap64([3]), error="earlier batches come first", since=900.0),
    OwesRows(ROWS, **TRIES),
    OwesRows(ROWS, LEFT, **TRIES),
    OwesRows(ROWS, BitMap64(), **TRIES),
    OwesRows(ROWS, came=BitMap64([3, 4]), error="earlier batches come first", since=900.0),
    HandedOn(LEFT, attempts=1, since=900.0),
    Done(),
    Done(attempts=2, error="given up"),
]


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:")
    connection.row_factory = sqlite3.Row
    connection.executescript(SCHEMA)
    yield connection
    connection.close()


@pytest.mark.parametrize("state", STATES, ids=repr)
def test_a_state_is_read_as_it_was_written(db: sqlite3.Connection, state: SinkState) -> None:
    wait = Wait("table", "ask")
    save_sinks(db, "incoming", 0, {"table": state, wait: state})
    assert load_states(db, "incoming", 0) == ({"table": state}, {wait: state})


@pytest.mark.parametrize(
    ("stored", "state"),
    [
        ((0, 0, "", None, None, None, None, None), Untried()),
        ((0, 0, "", None, [3], '[[4, "1/a"]]', None, None), Untried(ROWS)),
        ((0, 3, "down", 900.0, None, None, None, [3]), OwesAll(BitMap64([3]), **TRIES)),
        ((0, 3, "down", 900.0, None, None, None, None), OwesAll(**TRIES)),
        ((0, 3, "down", 900.0, [3], '[[4, "1/a"]]', None, None), OwesRows(ROWS, **TRIES)),
        ((0, 3, "down", 900.0, [3], '[[4, "1/a"]]', [5, 6], None), OwesRows(ROWS, LEFT, **TRIES)),
        ((0, 1, "", 900.0, [], None, [5, 6], None), HandedOn(LEFT, attempts=1, since=900.0)),
        ((1, 1, "", 900.0, [], None, [], None), Done(attempts=1, since=900.0)),
        ((1, 2, "", None, None, None, None, None), Done(attempts=2)),
    ],
)
def test_what_earlier_releases_have_stored_is_still_read(
    db: sqlite3.Connection, stored: tuple[object, ...], state: SinkState
) -> None:
    values = [to_bytes(BitMap64(value)) if isinstance(value, list) else value for value in stored]
    db.execute(
        "INSERT INTO batch_sinks (source, start, sink, done, attempts, error, since, owed, owed_children, "
        "handed, rows_of) VALUES ('incoming', 0, 'out via ask', ?, ?, ?, ?, ?, ?, ?, ?)",
        values,
    )
    assert load_states(db, "incoming", 0) == ({}, {Wait("out", "ask"): state})


def test_what_a_state_still_wants() -> None:
    whole = BitMap64(range(8))
    for state in STATES:
        assert state.to_ask == bool(state.owes(whole)) == (state.wants_all or bool(state.wanted_rows))
        assert state.done == isinstance(state, Done) and state.tried != isinstance(state, Untried)
    assert [state.wants_all for state in STATES[:5]] == [True, False, True, True, True]
    assert not any(state.wants_all for state in STATES[5:])


def test_what_was_handed_on_before_is_kept_until_it_is_answered() -> None:
    before = BitMap64([1])
    assert Done(attempts=2).also_handed(before) == HandedOn(before, attempts=2)
    assert HandedOn(LEFT).also_handed(before) == HandedOn(LEFT | before)
    assert OwesRows(ROWS).also_handed(before) == OwesRows(ROWS, before)
    assert OwesAll().also_handed(before) == OwesAll(handed=before)
    assert HandedOn(LEFT, attempts=1).with_answer(BitMap64([6])) == HandedOn(BitMap64([6]), attempts=1)
    assert HandedOn(LEFT, attempts=1).with_answer(BitMap64()) == Done(attempts=1)
    assert OwesRows(ROWS, LEFT).with_answer(BitMap64()) == OwesRows(ROWS, BitMap64())


def test_events_that_are_settled_are_owed_no_more() -> None:
    state = OwesRows(ROWS, LEFT, **TRIES)
    assert state.without(BitMap64([3, 5])) == OwesRows(ROWS[1:], BitMap64([6]), **TRIES)
    assert state.without(BitMap64([3, 4])) == HandedOn(LEFT, **TRIES)
    assert state.without(BitMap64([3, 4, 5, 6])) == Done(attempts=3, since=900.0)
    assert OwesAll(**TRIES).without(BitMap64([3])) == OwesAll(**TRIES), "its rows are not known one by one"


def test_whom_rows_are_owed_to() -> None:
    assert sink_of("table") == sink_of(Wait("table", "ask")) == "table"
