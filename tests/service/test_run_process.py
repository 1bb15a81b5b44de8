"""A run is known by the lock that its process holds, never by its pid alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from signoff.service import launch
from signoff.service.record import Record, RecordFile
from signoff.service.run_process import FILE, RunProcess, began, find_run, hold, parent, write_name
from tests.servers import wait_until

HOLDER = """
import sys, time
from pathlib import Path
from signoff.service import launch
from signoff.service.record import Record, RecordFile
from signoff.service.run_process import hold, write_name
lock = hold(Path(sys.argv[1]))
if lock is None:
    sys.exit(75)
write_name(lock, 7)
print("held", flush=True)
time.sleep(1000)
"""


def holder(directory: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", HOLDER, str(directory)], stdout=subprocess.PIPE, text=True)


def test_a_launcher_is_seen_before_it_looks_at_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it reads and writes may take long, on a busy disk."""
    records = RecordFile(tmp_path)
    records.make()
    records.add_text(1, "name: x")
    records.write(Record("running", 1))
    seen = []

    def slow(self: RecordFile) -> Record | None:
        seen.append(find_run(self.directory))
        return None

    monkeypatch.setattr(RecordFile, "read", slow)
    assert launch.main(tmp_path, 1, 0) == launch.NOT_WANTED
    assert [each and each.pid for each in seen] == [os.getpid()]


def test_there_is_no_run_where_none_was(tmp_path: Path) -> None:
    assert find_run(tmp_path) is None
    assert find_run(tmp_path / "nothing") is None


@pytest.mark.crash
def test_a_run_is_seen_while_it_lives_and_not_after(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert find_run(tmp_path) == RunProcess(process.pid, began(process.pid), 7)
        assert parent(process.pid) == os.getpid()
        with holder(tmp_path) as second:
            assert second.wait(60) == 75
        process.kill()
    wait_until(lambda: find_run(tmp_path) is None)
    assert (tmp_path / FILE).exists()  # its pid stands there still, and counts no more


@pytest.mark.crash
def test_a_signal_goes_to_no_other_process_that_has_got_the_pid(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "1000"]) as other:
        RunProcess(other.pid, began(other.pid) + 1, 1).signal(signal.SIGKILL)
        RunProcess(other.pid, began(other.pid), 1).signal(signal.SIGTERM)
        assert other.wait(60) == -signal.SIGTERM  # and not of the first
    RunProcess(other.pid, 5, 1).signal(signal.SIGKILL)  # nobody has it now


def test_a_lock_that_nobody_has_named_yet_is_waited_for(tmp_path: Path) -> None:
    lock = hold(tmp_path)
    assert lock is not None
    assert find_run(tmp_path) is None
    write_name(lock, 3)
    found = find_run(tmp_path)
    assert found is not None
    assert (found.pid, found.revision) == (os.getpid(), 3)
    assert json.loads((tmp_path / FILE).read_text())["pid"] == os.getpid()
    os.close(lock)
