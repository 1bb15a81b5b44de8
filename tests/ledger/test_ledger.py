"""What the ledger promises, one sentence each; the model test has the combinations."""

from __future__ import annotations

import os
import sqlite3
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numpy as np
import pytest
from pyroaring import BitMap64

from signoff.errors import StateError
from signoff.ledger import Account, Follower, Ledger, Outcome, RowOutcome, RowRef
from signoff.ledger.batch_state import Done, OwesRows
from signoff.ledger.sequences import describe, from_bytes, from_numpy, from_range, ranges, to_bytes
from tests.ledger.attempts import attempt


def test_every_event_counts_once_under_the_worst_of_its_rows(ledger: Ledger) -> None:
    ledger.expire("incoming", {5: "too slow"})
    attempt(ledger, 0, 6, delivered=[0, 2, 3, 5], dead_lettered=[2, 3, 4], refused=[3], dropped=[0, 1])
    account = ledger.account("incoming", 8)
    assert account == Account(8, delivered=1, dropped=1, dead_lettered=2, refused=1, expired=1, in_flight=2)
    assert account.balanced


def test_second_outcome_for_a_settled_event_changes_nothing_and_is_counted(ledger: Ledger) -> None:
    attempt(ledger, 0, 3, delivered=[0, 1])
    before = ledger.account("incoming", 3)
    attempt(ledger, 0, 3, delivered=[2], refused=[0], failed=[1], owed=[1])
    assert ledger.account("incoming", 3) == before
    assert ledger.books("incoming").ignored == 3
    assert ledger.batch("incoming", 0, 3).settled


def test_origin_that_left_owed_never_comes_back(ledger: Ledger) -> None:
    attempt(ledger, 0, 3, delivered=[0], owed=[1, 2])
    assert set(attempt(ledger, 0, 3, owed=[0, 1, 2]).owed) == {1, 2}


def test_partial_settlement_shows_what_is_settled_around_what_is_owed(ledger: Ledger) -> None:
    attempt(ledger, 0, 3, delivered=[0, 2], owed=[1])
    _, (found,) = ledger.settlements("incoming", 0)
    assert set(found.settled) == {0, 2}
    assert ledger.settled_upto("incoming") == 1
    assert ledger.needed_from("incoming") == 0


def test_batch_that_overlaps_or_leaves_a_gap_is_refused(ledger: Ledger) -> None:
    attempt(ledger, 0, 10, delivered=range(10))
    for start, end in ((0, 5), (5, 15), (0, 11)):
        with pytest.raises(StateError, match="overlaps"):
            ledger.open_batch("incoming", start, end, [])
    with pytest.raises(StateError, match="leave out the events from 10"):
        ledger.open_batch("incoming", 11, 12, [])


def test_event_is_not_called_settled_while_a_row_of_it_is_to_be_tried_again(ledger: Ledger) -> None:
    with pytest.raises(ValueError, match="called settled while"):
        attempt(ledger, 0, 3, failed=[1])
    owing = {"table": OwesRows((RowRef(2),), attempts=1)}
    with pytest.raises(ValueError, match="called settled while"):
        attempt(ledger, 0, 3, sinks=owing)
    assert ledger.account("incoming", 3).in_flight == 3


def test_outcomes_outside_of_the_batch_are_refused_and_change_nothing(ledger: Ledger) -> None:
    with pytest.raises(ValueError, match=r"\[0, 3\) does not hold 3"):
        attempt(ledger, 0, 3, delivered=[3])
    with pytest.raises(ValueError, match="not reported by row: expired"):
        attempt(ledger, 0, 3, expired=[0])
    assert ledger.account("incoming", 3).in_flight == 3


def test_what_each_sink_owes_survives_a_restart(ledger: Ledger, state: Path) -> None:
    owed = (RowRef(1), RowRef(2, "0"), RowRef(2, "high/1"))
    sinks = {
        "table": OwesRows(owed, attempts=3, error="down", since=900.0),
        "archive": Done(attempts=1),
    }
    attempt(ledger, 0, 3, delivered=[0, 2], owed=[1, 2], sinks=sinks, rows={"archive": 3, "table": 1})
    with Ledger(state / "ledger.db", readonly=True) as reader:
        known = reader.batch("incoming", 0, 3)
        totals = reader.sink_totals()
    assert known.sinks == sinks
    assert (totals["table"].rows, totals["table"].failing_since, totals["table"].error) == (1, 900.0, "down")
    assert (totals["archive"].rows, totals["archive"].failing_since) == (3, None)


def test_sink_that_could_not_be_prepared_is_well_again_when_it_takes_a_batch(ledger: Ledger) -> None:
    ledger.note_sink("table", error="no such host")
    assert ledger.sink_totals()["table"].failing_since == 1000.0
    attempt(ledger, 0, 1, delivered=[0], sinks={"table": Done(attempts=1)})
    assert ledger.sink_totals()["table"].failing_since is None
    assert ledger.sink_totals()["table"].error == "no such host"


def test_secret_in_a_reason_is_masked(ledger: Ledger) -> None:
    ledger.open_batch("incoming", 0, 1, [])
    reason = "cannot reach postgres://user:hunter22@host/db"
    outcome = RowOutcome(RowRef(0), "table", Outcome.REFUSED, reason)
    failing = Done(error=reason)
    ledger.record(
        "incoming", 0, 1, delivered=BitMap64(), outcomes=[outcome], sinks={"table": failing}, owed=BitMap64()
    )
    assert "hunter22" not in ledger.rows("incoming", 0)[0].reason
    assert "hunter22" not in ledger.sink_totals()["table"].error
    assert "hunter22" not in ledger.batch("incoming", 0, 1).sinks["table"].error


def test_ledger_that_does_not_exist_is_empty_for_readers_until_it_does(state: Path) -> None:
    reader = Ledger(state / "ledger.db", readonly=True)
    assert reader.account("incoming", 0) == Account()
    before = reader.version()
    assert not state.exists()
    with Ledger(state / "ledger.db") as writer:
        attempt(writer, 0, 2, delivered=[0, 1])
    assert reader.version() != before
    assert reader.account("incoming", 2).delivered == 2
    reader.close()


def test_reader_cannot_write(ledger: Ledger, state: Path) -> None:
    with (
        Ledger(state / "ledger.db", readonly=True) as reader,
        pytest.raises(StateError, match="reading only"),
    ):
        reader.open_batch("incoming", 0, 1, [])


def test_version_changes_when_another_connection_has_written(ledger: Ledger, state: Path) -> None:
    with Ledger(state / "ledger.db", readonly=True) as reader:
        before = reader.version()
        assert reader.version() == before
        attempt(ledger, 0, 1, delivered=[0])
        assert reader.version() != before


def test_file_of_another_format_is_refused_with_what_to_do(state: Path) -> None:
    state.mkdir()
    with sqlite3.connect(state / "ledger.db") as other:
        other.execute("PRAGMA user_version=99")
    other.close()
    with pytest.raises(StateError, match="format 99"):
        Ledger(state / "ledger.db")


def test_file_of_the_format_before_is_brought_up_to_date(ledger: Ledger, state: Path) -> None:
    attempt(ledger, 0, 2, delivered=[0], refused=[1])
    ledger.close()
    with sqlite3.connect(state / "ledger.db") as old:
        old.execute("DROP INDEX exceptions_by_letter")
        old.execute("ALTER TABLE exceptions DROP COLUMN letter")
        old.execute("ALTER TABLE exceptions DROP COLUMN transient")
        old.execute("ALTER TABLE batch_sinks DROP COLUMN handed")
        old.execute("ALTER TABLE batch_sinks DROP COLUMN rows_of")
        old.execute("ALTER TABLE batch_sinks DROP COLUMN published_as")
        old.execute("ALTER TABLE clock DROP COLUMN published")
        old.execute("DROP TABLE places")
        old.execute("DROP TABLE tokens")
        old.execute("DROP TABLE departures")
        old.execute("PRAGMA user_version=1")
    old.close()
    with Ledger(state / "ledger.db") as again:
        assert [row.outcome for row in again.rows("incoming", 1)] == [Outcome.REFUSED]
        assert set(Follower(again, "incoming").poll().refused) == {1}
    with Ledger(state / "ledger.db") as third:
        assert third.account("incoming", 2).refused == 1


def test_file_that_is_no_database_is_refused(state: Path) -> None:
    state.mkdir()
    (state / "ledger.db").write_bytes(b"something else entirely" * 100)
    with pytest.raises(StateError, match="cannot be read"):
        Ledger(state / "ledger.db")


def test_transaction_that_fails_half_way_leaves_nothing_behind(ledger: Ledger) -> None:
    attempt(ledger, 0, 2, delivered=[0], owed=[1])
    before = ledger.batch("incoming", 0, 2)
    broken = RowOutcome(RowRef(1), None, Outcome.REFUSED, "x")  # type: ignore[arg-type]
    with pytest.raises(sqlite3.IntegrityError):
        ledger.record("incoming", 0, 2, delivered=BitMap64([1]), outcomes=[broken], sinks={}, owed=BitMap64())
    assert ledger.batch("incoming", 0, 2) == before


def _many_batches(path: Path, source: str) -> None:
    with Ledger(path) as ledger:
        for start in range(0, 500, 10):
            attempt(ledger, start, start + 10, source=source, delivered=range(start, start + 10))


def _open_many(paths: list[Path], begin: Barrier) -> None:
    for path in paths:
        begin.wait(30)
        Ledger(path).close()


@pytest.mark.servers
def test_several_processes_that_open_a_new_ledger_at_once_all_get_it(state: Path) -> None:
    spawn = get_context("spawn")
    begin, paths = spawn.Barrier(4), [state / str(number) / "ledger.db" for number in range(100)]
    workers = [spawn.Process(target=_open_many, args=(paths, begin)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        if worker.exitcode:
            begin.abort()
    assert [worker.exitcode for worker in workers] == [0] * 4


@pytest.mark.servers
def test_several_processes_write_at_once(state: Path) -> None:
    path = state / "ledger.db"
    workers = [
        get_context("spawn").Process(target=_many_batches, args=(path, source))
        for source in ("north", "south")
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    with Ledger(path, readonly=True) as reader:
        assert [reader.account(source, 500).delivered for source in ("north", "south")] == [500, 500]


def test_size_stays_flat_over_thousands_of_batches(tmp_path: Path) -> None:
    memory = Path("/dev/shm") / f"signoff-{os.getpid()}" if Path("/dev/shm").is_dir() else tmp_path
    path = memory / "ledger.db"
    sizes = []
    try:
        with Ledger(path, keep_batches=100) as ledger:
            for number in range(4_000):
                start = number * 10
                attempt(ledger, start, start + 10, delivered=range(start, start + 9), dropped=[start + 9])
                if number % 400 == 399:
                    sizes.append(path.stat().st_size + path.with_name("ledger.db-wal").stat().st_size)
            account = ledger.account("incoming", 40_000)
    finally:
        for file in memory.glob("ledger.db*"):
            file.unlink()
    assert account == Account(40_000, delivered=36_000, dropped=4_000)
    assert max(sizes[1:]) <= sizes[1] * 1.1


def test_sets_of_sequences_are_built_stored_and_described() -> None:
    numbers = from_numpy(np.array([3, 4, 5, 9, 2**40], dtype=np.int64))
    assert list(ranges(numbers)) == [(3, 6), (9, 10), (2**40, 2**40 + 1)]
    assert from_bytes(to_bytes(numbers)) == numbers
    assert from_bytes(to_bytes(BitMap64())) == BitMap64() == from_range(5, 5)
    assert describe(numbers, limit=2) == "3–5, 9 and 1 more"
    assert len(to_bytes(from_range(0, 1_000_000))) < 300
