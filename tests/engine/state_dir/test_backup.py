"""A backup is of one moment, also while the run goes on; half a backup is none."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from signoff.cli import app
from signoff.engine.state_dir import backup as backups
from signoff.engine.state_dir.backup import MANIFEST, PARTIAL, back_up, restore
from signoff.engine.state_dir.identity import StateIdentity
from signoff.engine.state_dir.unfinished import finish, unfinished
from signoff.errors import StateError
from signoff.ledger import DeadLetters, Ledger, RunLock
from signoff.ledger.audit import audit_state
from signoff.log import LogReader
from signoff.pipeline.graph import Graph
from tests.ledger.test_commands import PIPELINE
from tests.servers import PATIENCE_S

WRITER = """
import sys
from pathlib import Path
from pyroaring import BitMap64
import pyarrow as pa
from signoff.engine.state_dir.identity import StateIdentity
from signoff.ledger import DeadLetter, DeadLetters, Ledger, Outcome, RowOutcome, RowRef, RunLock
from signoff.log import LogReader, LogWriter, trim
from signoff.pipeline.model import LogSettings
from signoff.log.event_schema import EVENT_SCHEMA

state = Path(sys.argv[1])
settings = LogSettings.model_construct(max_bytes=2**30, segment_bytes=4096, sync_ms=0, sync_bytes=1)
with RunLock(state), Ledger(state / "ledger.db") as ledger, DeadLetters(state / "dead_letters.db") as letters:
    StateIdentity(state, ledger, LogReader).begin(["incoming"])
    log = LogWriter(state / "log" / "incoming", settings)
    start = log.next_sequence
    print("begun", flush=True)
    while True:
        events = [{"payload": b"%d" % n, "received_at": 0, "position": n} for n in range(start, start + 7)]
        log.append(pa.RecordBatch.from_pylist(events, schema=EVENT_SCHEMA))
        end = log.sync()
        ledger.open_batch("incoming", start, end, ["table"])
        letters.add([DeadLetter(f"incoming/{start}", "table", "no", b"%d" % start)])
        dead = RowOutcome(RowRef(start), "table", Outcome.DEAD_LETTERED, "no")
        ledger.record(
            "incoming", start, end, delivered=BitMap64(range(start + 1, end)), outcomes=[dead], sinks={},
            owed=BitMap64(),
        )
        trim(state / "log" / "incoming", start)
        start = end
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "alarms.yaml"
    path.write_text(PIPELINE)
    return path


@pytest.fixture
def state(file: Path) -> Path:
    return graph_of(file).state


@pytest.fixture
def writer(state: Path) -> Iterator[subprocess.Popen[str]]:
    """A run: it receives, settles, dead-letters and trims as fast as it can."""
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(state)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "begun\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def graph_of(file: Path) -> Graph:
    from signoff.cli.reading import load_for_reading

    return load_for_reading(file)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def progress(state: Path) -> int:
    with Ledger(state / "ledger.db", readonly=True) as ledger:
        return ledger.books("incoming").next


def await_progress(state: Path) -> None:
    before, deadline = progress(state), time.monotonic() + PATIENCE_S
    while progress(state) == before:
        assert time.monotonic() < deadline, "the run stands still"
        time.sleep(0.01)


@pytest.mark.case(43)
def test_what_was_backed_up_while_the_run_went_on_belongs_together_and_has_lost_nothing(
    file: Path, state: Path, writer: subprocess.Popen[str]
) -> None:
    graph = graph_of(file)
    backups = []
    for number in range(3):
        await_progress(state)
        done = run("backup", file, file.parent / f"backup-{number}")
        assert done.exit_code == 0, done.output
        assert "while its run went on" in done.stdout
        backups.append(file.parent / f"backup-{number}")
    await_progress(state)
    writer.kill()
    writer.wait()
    for number, backup in enumerate(backups):
        state.rename(file.parent / f"old-{number}")
        done = run("restore", file, backup)
        assert done.exit_code == 0, done.output
        assert "are given again" in done.stdout and "do not come again" in done.stdout
        with Ledger(state / "ledger.db") as ledger, DeadLetters(state / "dead_letters.db") as letters:
            assert StateIdentity(state, ledger, LogReader).misfits(graph.sources) == []
            settled = ledger.settled_upto("incoming")
            dead = {row.row.sequence for n in range(settled) for row in ledger.rows("incoming", n)}
            assert settled and all(letters.get(f"incoming/{n}") for n in dead)
            log = LogReader(state / "log" / "incoming")
            assert log.first() <= ledger.needed_from("incoming") <= log.head()
            assert all(True for _ in log.read(ledger.needed_from("incoming"), log.head()))
        found = audit_state(state, ["incoming"], LogReader)
        assert found.balanced, [str(finding) for finding in found.findings]
        assert (state.stat().st_mode & 0o777, (state / "ledger.db").stat().st_mode & 0o777) == (0o700, 0o600)


def test_killed_in_the_middle_it_leaves_no_backup_and_a_run_that_goes_on(
    file: Path, state: Path, writer: subprocess.Popen[str]
) -> None:
    target = file.parent / "backup"
    slow = (
        "import sys, time\nfrom pathlib import Path\nfrom signoff.engine.state_dir import backup\n"
        "from signoff.cli.reading import load_for_reading\n"
        "update = backup._Copy.update\n"
        "def slow(self, *, last=False):\n"
        "    update(self, last=last)\n"
        "    if last:\n        print('standing', flush=True)\n        time.sleep(600)\n"
        "backup._Copy.update = slow\n"
        "backup.back_up(load_for_reading(Path(sys.argv[1])), Path(sys.argv[2]))\n"
    )
    killed = subprocess.Popen(
        [sys.executable, "-c", slow, str(file), str(target)], stdout=subprocess.PIPE, text=True
    )
    assert killed.stdout is not None and killed.stdout.readline() == "standing\n"
    assert _state_of(writer.pid) == "T", "it stands still"
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    killed.stdout.close()
    await_progress(state)
    assert not target.exists()
    (half,) = file.parent.glob("backup.partial-*")
    writer.kill()
    writer.wait()
    state.rename(file.parent / "old")
    wrong = run("restore", file, half)
    assert wrong.exit_code != 0 and not state.exists()
    assert "not finished" in str(wrong.exception)
    (file.parent / "old").rename(state)
    assert run("backup", file, target).exit_code == 0, "the next one is made, and the half one is gone"
    assert not list(file.parent.glob("backup.partial-*"))


def _state_of(pid: int) -> str:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        found = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        if found == "T" or time.monotonic() > deadline:
            return found
        time.sleep(0.01)


@pytest.fixture
def made(file: Path, state: Path) -> Path:
    """A backup, and no state directory any more."""
    with RunLock(state), Ledger(state / "ledger.db") as ledger:
        StateIdentity(state, ledger, LogReader).begin(["incoming"])
    target = file.parent / "backup"
    assert not back_up(graph_of(file), target).running
    state.rename(file.parent / "old")
    return target


def test_what_is_no_backup_is_not_restored_and_nothing_is_left_of_it(
    file: Path, state: Path, made: Path
) -> None:
    ledger = made / "state" / "ledger.db"
    whole = ledger.read_bytes()
    ledger.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert "damaged" in str(run("restore", file, made).exception)
    ledger.unlink()
    assert "missing" in str(run("restore", file, made).exception)
    ledger.write_bytes(whole)
    manifest = json.loads((made / MANIFEST).read_bytes())
    (made / MANIFEST).write_text(json.dumps({**manifest, "pipeline": "another"}))
    assert 'pipeline "another"' in str(run("restore", file, made).exception)
    outside = {**manifest, "files": {"../stolen": manifest["files"]["ledger.db"]}}
    (made / MANIFEST).write_text(json.dumps(outside))
    assert run("restore", file, made).exit_code != 0
    assert not state.exists() and not list(state.parent.glob("*restoring*"))
    (made / MANIFEST).write_text(json.dumps(manifest))
    assert run("restore", file, made).exit_code == 0
    assert "move it away" in str(run("restore", file, made).exception), "never over one that is there"
    assert "is there already" in str(run("backup", file, made).exception)


@pytest.fixture
def begun(file: Path, state: Path) -> Graph:
    """A pipeline of which one run has begun; none is alive."""
    with RunLock(state), Ledger(state / "ledger.db") as ledger:
        StateIdentity(state, ledger, LogReader).begin(["incoming"])
    return graph_of(file)


@pytest.mark.case(43)
@pytest.mark.parametrize("linked", ["log", "log/incoming"])
def test_a_log_that_is_a_link_to_another_disk_is_in_the_backup_and_a_plain_directory_after(
    begun: Graph, tmp_path: Path, linked: str
) -> None:
    (begun.state / linked).rename(tmp_path / "larger")
    (begun.state / linked).symlink_to(tmp_path / "larger")
    assert "log/incoming/identity" in back_up(begun, tmp_path / "backup").files
    begun.state.rename(tmp_path / "old")
    shutil.rmtree(tmp_path / "larger")
    restore(begun, tmp_path / "backup")
    assert (begun.state / linked).is_dir() and not (begun.state / linked).is_symlink()
    with Ledger(begun.state / "ledger.db", readonly=True) as ledger:
        assert StateIdentity(begun.state, ledger, LogReader).misfits(begun.sources) == []


@pytest.mark.parametrize("to", ["log", "..", "elsewhere", "backups", "nothing", "itself", "ledger.db"])
def test_what_a_backup_cannot_follow_is_refused_by_name(begun: Graph, tmp_path: Path, to: str) -> None:
    """Loops, also by way of another directory; the backup itself; files, and what is not there."""
    link, target = begun.state / "log" / "linked", begun.state / to
    if to == "elsewhere":
        target = tmp_path / to
        target.mkdir()
        (target / "back").symlink_to(begun.state / "log")
    elif to == "backups":
        target = tmp_path / to
        target.mkdir()
    link.symlink_to(link if to == "itself" else target)
    with pytest.raises(StateError, match="linked"):
        back_up(begun, tmp_path / "backups" / "one")
    assert not list(tmp_path.rglob("*partial*")) and not (tmp_path / "backups" / "one").exists()


def test_a_directory_that_cannot_be_read_is_not_left_out(begun: Graph, tmp_path: Path) -> None:
    scandir = os.scandir

    def denied(path: str) -> Any:
        if str(path).endswith("incoming"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "scandir", denied)
        with pytest.raises(StateError, match=r"incoming.*Permission denied"):
            back_up(begun, tmp_path / "backup")
    assert not (tmp_path / "backup").exists()


def test_of_two_backups_to_one_place_the_first_that_is_whole_gets_it(begun: Graph, tmp_path: Path) -> None:
    target = tmp_path / "backup"
    (tmp_path / "backup.partial-77").mkdir()
    with pytest.raises(StateError, match="cannot be put there"), unfinished(target, PARTIAL) as mine:
        assert not (tmp_path / "backup.partial-77").exists(), "nobody makes it"
        (mine / "file").touch()
        back_up(begun, target)
        assert (mine / "file").exists(), "it is being made"
        finish(mine, target)
    assert sorted(path.name for path in target.iterdir()) == [MANIFEST, "state"]
    assert not list(tmp_path.glob("backup.partial-*"))


@pytest.mark.parametrize("lost", ["ledger.db", "log/incoming/identity"])
def test_a_backup_that_has_lost_a_file_while_it_was_made_is_none(
    begun: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    update = backups._Copy.update

    def loses(self: backups._Copy, *, last: bool = False) -> None:
        update(self, last=last)
        (self._target / lost).unlink()

    monkeypatch.setattr(backups._Copy, "update", loses)
    with pytest.raises(StateError, match=f"{lost}.*nothing was backed up"):
        back_up(begun, tmp_path / "backup")
    assert not (tmp_path / "backup").exists()


def test_a_backup_without_its_ledger_is_not_restored(file: Path, state: Path, made: Path) -> None:
    manifest = json.loads((made / MANIFEST).read_bytes())
    del manifest["files"]["ledger.db"]
    (made / MANIFEST).write_text(json.dumps(manifest))
    assert "ledger.db is not in it" in str(run("restore", file, made).exception)
    assert not state.exists()
