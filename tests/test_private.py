"""What is kept is private, whatever the umask and however it was made; what is the user's is not."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from signoff.engine.spark.disk_marks import SharedDisk
from signoff.ledger import DeadLetters, Ledger, RunLock
from signoff.log import LogWriter, exclude
from signoff.log.event_schema import EVENT_SCHEMA
from signoff.pipeline.model import LogSettings
from signoff.private import as_the_user, for_the_user, make_state, privately


@pytest.fixture(autouse=True)
def careless() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def open_to_others(directory: Path) -> list[str]:
    every = [directory, *directory.rglob("*")]
    return [str(path) for path in every if stat.S_IMODE(path.lstat().st_mode) & 0o077]


def test_everything_a_state_directory_holds_is_private(tmp_path: Path) -> None:
    state = tmp_path / "deep" / "state"
    with RunLock(state), Ledger(state / "ledger.db") as ledger, DeadLetters(state / "dead_letters.db"):
        ledger.told("incoming", 0)
        writer = LogWriter(state / "log" / "incoming", LogSettings())
        writer.append(pa.RecordBatch.from_pylist([{"payload": b"x", "received_at": 0}], schema=EVENT_SCHEMA))
        writer.close()
        exclude(state / "log" / "incoming", [0])
        assert (state / "ledger.db-wal").exists(), "also what SQLite puts beside"
        assert open_to_others(state) == []
    assert stat.S_IMODE((tmp_path / "deep").stat().st_mode) == 0o777, "what is above it is the user's"


def test_marks_of_a_shared_disk_are_private_and_the_directory_of_a_sink_is_the_users(tmp_path: Path) -> None:
    state, out = tmp_path / "state", tmp_path / "out"
    shared = SharedDisk(state, "tested", [out])
    shared.begin()
    try:
        assert open_to_others(state) == [] and open_to_others(out) == [str(out)]
        assert [path.name for path in out.iterdir()] == [shared.told.mark]
    finally:
        shared.close()


def test_a_state_directory_that_was_open_to_others_is_tightened(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("not ours")
    inner = tmp_path / "state" / "checkpoints" / "incoming"
    inner.mkdir(parents=True)
    (inner / "offsets").write_text("x")
    (inner / "link").symlink_to(outside)
    make_state(tmp_path / "state")
    assert [path for path in open_to_others(tmp_path / "state") if not path.endswith("link")] == []
    assert stat.S_IMODE(outside.stat().st_mode) == 0o666
    assert stat.S_IMODE((inner / "offsets").stat().st_mode) == 0o600


def test_what_is_the_users_has_the_umask_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIGNOFF_UMASK", "")
    os.umask(0o022)
    with privately():
        (tmp_path / "ours").write_text("")
        with for_the_user():
            (tmp_path / "shared").mkdir()
        as_the_user()
        (tmp_path / "theirs").write_text("")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"ours": 0o600, "shared": 0o755, "theirs": 0o644}
