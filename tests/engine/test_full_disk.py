"""A full disk is waited for, and only a full disk."""

from __future__ import annotations

import errno
import sqlite3
from pathlib import Path

import pytest

from signoff.engine.batch.interrupts import Interrupts
from signoff.engine.engine import EngineStatus
from signoff.engine.full_disk import Room
from signoff.errors import LogNoSpace, StateError
from signoff.ledger import Ledger
from signoff.ledger.store import Store, no_room
from tests.clock import Clock

FULL = OSError(errno.ENOSPC, "No space left on device")


def of_sqlite(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = code
    return error


def caused(error: Exception) -> StateError:
    made = StateError("the ledger: database or disk is full")
    made.__cause__ = error
    return made


@pytest.mark.parametrize(
    ("error", "is_full"),
    [
        (FULL, True),
        (OSError(errno.EDQUOT, "quota"), True),
        (OSError(errno.EACCES, "denied"), False),
        (caused(of_sqlite(sqlite3.SQLITE_FULL)), True),
        (caused(of_sqlite(sqlite3.SQLITE_IOERR | (3 << 8))), True),
        (caused(of_sqlite(sqlite3.SQLITE_BUSY)), False),
        (StateError("in use"), False),
        (LogNoSpace("[log-no-space]"), True),
        (None, False),
    ],
)
def test_which_errors_are_those_of_a_full_disk(error: Exception | None, is_full: bool) -> None:
    assert no_room(error) is is_full


def test_what_fails_for_lack_of_room_is_passed_over_said_once_and_over_when_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock(100.0)
    room = Room(clock)
    for _ in range(3):
        with room:
            raise FULL
        clock.now += 1
    assert "No space left" in room.trouble
    with room:
        pass
    assert room.trouble, "not a moment after the last failure"
    clock.now += 10
    with room:
        pass
    assert not room.trouble
    assert [message.split(":")[0] for message in caplog.messages] == [
        "the disk is full",
        "there is room again",
    ]


def test_other_errors_are_not_passed_over() -> None:
    with pytest.raises(StateError), Room():
        raise StateError("damaged")


@pytest.mark.parametrize(
    "text",
    [
        "java.io.IOException: No space left on device",
        "StateError: ledger.db: database or disk is full; nothing",
    ],
)
def test_a_full_disk_is_known_by_what_java_and_tasks_say(text: str) -> None:
    room = Room()
    assert room.is_missing(text) and room.trouble
    assert not room.is_missing("[DIVIDE_BY_ZERO] Division by zero")


def test_something_is_opened_as_soon_as_there_is_room(tmp_path: Path) -> None:
    tries = 0

    def open_() -> Ledger:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise caused(of_sqlite(sqlite3.SQLITE_FULL))
        return Ledger(tmp_path / "ledger.db")

    Room().wait_for(open_, Interrupts()).close()
    assert tries == 3
    stopping = Interrupts()
    stopping.stop(0.0)
    tries = 0
    with pytest.raises(StateError):
        Room().wait_for(open_, stopping)


def test_the_engines_status_survives_a_full_disk_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = EngineStatus(tmp_path)
    status.report("running")
    before = (tmp_path / "engine.json").read_text()

    def full(*_: object) -> None:
        raise FULL

    monkeypatch.setattr("signoff.engine.engine.json.dump", full)
    status.report("draining")
    assert (tmp_path / "engine.json").read_text() == before
    assert [path.name for path in tmp_path.iterdir()] == ["engine.json"]


def test_the_status_goes_on_when_the_clock_was_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = EngineStatus(tmp_path)
    status.report("starting")
    monkeypatch.setattr("signoff.engine.engine.time.time", lambda: 0.0)
    monkeypatch.setattr("signoff.engine.engine._STATUS_S", 0.0)
    assert status.due


def test_a_query_that_cannot_be_started_for_lack_of_room_is_tried_again() -> None:
    def start() -> None:
        raise RuntimeError("An error occurred: java.io.IOException: No space left on device")

    def wrong() -> None:
        raise RuntimeError("no such column")

    room = Room()
    assert not room.tried(start) and room.trouble
    assert room.tried(lambda: None)
    with pytest.raises(RuntimeError, match="no such column"):
        room.tried(wrong)


@pytest.mark.parametrize("kind", ["read", "write"])
def test_a_full_disk_is_known_as_one_when_sqlite_has_ended_the_transaction_by_itself(
    tmp_path: Path, kind: str
) -> None:
    store = Store(tmp_path / "some.db", schema="CREATE TABLE some (number INTEGER)", version=1)
    with pytest.raises(StateError, match="disk is full") as caught, getattr(store, kind)() as db:
        db.execute("ROLLBACK")
        raise of_sqlite(sqlite3.SQLITE_FULL)
    assert no_room(caught.value)
    with store.write() as db:
        db.execute("INSERT INTO some VALUES (1)")
    with store.read() as db:
        assert db.execute("SELECT count(*) FROM some").fetchone()[0] == 1
    store.close()


def test_a_disk_that_stays_full_is_said_again_and_more_and_more_seldom(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock(100.0)
    room = Room(clock)
    for _ in range(3600):
        with room:
            raise FULL
        clock.now += 1
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 10 and "still full after 30 s" in said[1]
