"""The real intake process with the files source: kills, full logs, full disks, the end of the run."""

from __future__ import annotations

import gzip
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from signoff.log import LogReader, trim
from signoff.pipeline.model import LogSettings
from signoff.sources.files.config import FilesConfig
from signoff.sources.generate import GenerateConfig
from signoff.sources.stdin import StdinConfig
from tests.intake.processes import IntakeProcess, logged, settle
from tests.servers import PATIENCE_S, wait_until

pytestmark = pytest.mark.servers

MIB = 1024**2


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


def write_lines(folder: Path, files: int, lines: int, width: int = 150) -> list[bytes]:
    """Files of numbered lines; returns all lines."""
    everything = []
    for file in range(files):
        rows = [b"%04d-%07d " % (file, line) + b"x" * (width - 13) for line in range(lines)]
        (folder / f"{file:04d}.jsonl").write_bytes(b"\n".join(rows) + b"\n")
        os.utime(folder / f"{file:04d}.jsonl", (1000 + file, 1000 + file))
        everything += rows
    return everything


def files_config(**fields: object) -> FilesConfig:
    return FilesConfig.model_validate({"path": "in/*.jsonl", "poll_ms": 20, **fields})


@pytest.mark.crash
def test_after_sigkill_anywhere_each_line_is_in_the_log_exactly_once(tmp_path: Path, folder: Path) -> None:
    lines = write_lines(folder, files=40, lines=4000)
    config = files_config(log=LogSettings(sync_bytes=64 * 1024, segment_bytes=MIB))
    small = files_config(log=LogSettings(sync_bytes=64 * 1024, segment_bytes=MIB, max_bytes=4 * MIB))
    heads = []
    for share in (0.01, 0.25, 0.5):
        with IntakeProcess(tmp_path, config if heads else small) as intake:
            intake.wait_for_log(int(len(lines) * share) + 1)
            intake.kill()
        heads.append(LogReader(tmp_path / "state" / "log" / "incoming").head())
    assert 0 < heads[0] < len(lines), "the kill came too late to show anything"
    with IntakeProcess(tmp_path, config, once=True) as intake:
        intake.wait_for_state("ended")
        assert intake.end() == 0
    assert logged(tmp_path) == lines


@pytest.mark.crash
def test_files_read_across_a_kill_are_put_away_when_their_events_are_settled(
    tmp_path: Path, folder: Path
) -> None:
    lines = write_lines(folder, files=20, lines=2000)
    config = files_config(on_acknowledge="move")
    with IntakeProcess(tmp_path, config) as intake:
        intake.wait_for_events(len(lines) // 3)
        intake.kill()
    with IntakeProcess(tmp_path, config, once=True) as intake:
        intake.wait_for_state("ended")
        assert sorted(folder.glob("*.jsonl")) == sorted(folder.iterdir())
        settle(tmp_path, 0, len(lines), owed={5})
        intake.wait_for(lambda status: status.settled_sequence == 5)
        wait_until(  # files are put away in slices: the last ones after the status has said so
            lambda: [path.name for path in folder.glob("*.jsonl")] == ["0000.jsonl"]
        )
        settle(tmp_path, 0, len(lines))
        intake.wait_for(lambda status: status.drained)
        assert intake.end() == 0
    assert len(list((folder / "acknowledged").iterdir())) == 20


def test_a_full_log_holds_the_source_back_until_it_is_trimmed(tmp_path: Path, folder: Path) -> None:
    lines = write_lines(folder, files=6, lines=10_000)
    config = files_config(log=LogSettings(max_bytes=4 * MIB, segment_bytes=MIB))
    log = tmp_path / "state" / "log" / "incoming"
    found: list[bytes] = []
    with IntakeProcess(tmp_path, config, once=True) as intake:
        while len(found) < len(lines):
            status = intake.wait_for(lambda now: now.state in ("held", "ended"))
            assert sum(path.stat().st_size for path in log.glob("*.log")) < 14 * MIB
            if status.state == "held":
                assert "log.max_bytes" in status.reason
            reader = LogReader(log)
            start, head = len(found), reader.head()
            found += [row for _, batch in reader.read(start, head) for row in batch.column(0).to_pylist()]
            trim(log, head)
            intake.wait_for(lambda now, head=head: now.durable_sequence > head or now.state == "ended")  # type: ignore[misc]
        assert intake.end() == 0
    assert found == lines


def test_a_full_disk_loses_nothing_and_work_goes_on_when_there_is_room(tmp_path: Path, folder: Path) -> None:
    lines = write_lines(folder, files=4, lines=10_000)
    with IntakeProcess(tmp_path, files_config(), once=True, file_size_limit=2 * MIB) as intake:
        held = intake.wait_for_state("held")
        assert "nothing is lost" in held.reason
        assert held.durable_sequence < len(lines)
        intake.limit_file_size(1024 * MIB)
        intake.wait_for_state("ended")
        assert intake.end() == 0
    assert logged(tmp_path) == lines


@pytest.mark.crash
def test_killed_while_the_disk_is_full_nothing_is_lost(tmp_path: Path, folder: Path) -> None:
    lines = write_lines(folder, files=4, lines=10_000)
    with IntakeProcess(tmp_path, files_config(), once=True, file_size_limit=2 * MIB) as intake:
        intake.wait_for_state("held")
        intake.kill()
    with IntakeProcess(tmp_path, files_config(), once=True) as intake:
        intake.wait_for_state("ended")
        assert intake.end() == 0
    assert logged(tmp_path) == lines


def test_no_room_for_the_notes_about_files_only_holds_it_back(tmp_path: Path, folder: Path) -> None:
    with IntakeProcess(tmp_path, files_config(settle_ms=0)) as intake:
        intake.wait_for(lambda status: status.updated_at > 0)
        intake.limit_file_size(60_000)  # the notes outgrow this before the log does
        lines = write_lines(folder, files=900, lines=1, width=20)
        intake.wait_for_state("held")
        intake.limit_file_size(1024 * MIB)
        intake.wait_for_events(len(lines))
        assert intake.end() == 0
    assert sorted(logged(tmp_path)) == lines


def test_the_end_of_its_input_ends_the_intake(tmp_path: Path, folder: Path) -> None:
    with IntakeProcess(tmp_path, files_config()) as intake:
        intake.wait_for(lambda status: status.updated_at > 0)
        assert intake.end() == 0
        assert intake.status.state == "stopped"


def test_events_settled_last_are_still_told_when_the_run_ends(tmp_path: Path, folder: Path) -> None:
    write_lines(folder, files=1, lines=3)
    with IntakeProcess(tmp_path, files_config(on_acknowledge="delete"), once=True) as intake:
        intake.wait_for_state("ended")
        settle(tmp_path, 0, 3)
        assert intake.end() == 0
    assert not list(folder.iterdir())


def test_sigterm_stops_receiving_but_goes_on_settling(tmp_path: Path, folder: Path) -> None:
    write_lines(folder, files=1, lines=3)
    with IntakeProcess(tmp_path, files_config(on_acknowledge="delete", settle_ms=0)) as intake:
        intake.wait_for_events(3)
        intake.stop()
        intake.wait_for_state("stopped")
        write_lines(folder, files=2, lines=3)
        assert not intake.status.drained
        settle(tmp_path, 0, 3)
        intake.wait_for(lambda status: status.drained)
        assert intake.status.next_sequence == 3
        assert intake.end() == 0


def test_without_acknowledgements_a_file_is_put_away_once_it_is_in_the_log(
    tmp_path: Path, folder: Path
) -> None:
    lines = write_lines(folder, files=3, lines=10)
    config = files_config(on_acknowledge="delete")
    with IntakeProcess(tmp_path, config, once=True, acknowledges=False) as intake:
        intake.wait_for(lambda status: status.drained)
        assert not list(folder.iterdir())
        assert intake.end() == 0
    assert logged(tmp_path) == lines


def test_the_end_of_standard_input_is_the_end_of_the_source(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    with IntakeProcess(tmp_path, StdinConfig(), stdin=reading, acknowledges=False) as intake:
        os.close(reading)
        os.write(writing, b"one\ntw")
        intake.wait_for_events(1)
        os.write(writing, b"o\nthree")
        os.close(writing)
        intake.wait_for(lambda status: status.state == "ended" and status.drained)
        assert intake.end() == 0
    assert logged(tmp_path) == [b"one", b"two", b"three"]


@pytest.mark.crash
def test_a_generator_goes_on_where_it_was_killed(tmp_path: Path) -> None:
    config = GenerateConfig(template="sequence", count=200_000, rate=400_000)
    with IntakeProcess(tmp_path, config, acknowledges=False) as intake:
        intake.wait_for_events(20_000)
        intake.kill()
    with IntakeProcess(tmp_path, config, acknowledges=False) as intake:
        intake.wait_for_state("ended")
        assert intake.end() == 0
    assert logged(tmp_path) == [b'{"n":%d}' % n for n in range(200_000)]


def test_a_failed_intake_still_says_how_far_it_came(tmp_path: Path, folder: Path) -> None:
    write_lines(folder, files=1, lines=3)
    with IntakeProcess(tmp_path, files_config(), once=True) as intake:
        intake.wait_for_state("ended")
        assert intake.end() == 0
    shutil.rmtree(folder)
    with IntakeProcess(tmp_path, files_config(), once=True) as intake:
        assert intake.process.wait(PATIENCE_S) == 1
        assert (intake.status.state, intake.status.durable_sequence) == ("failed", 3)


def test_a_source_that_cannot_be_opened_says_why_and_ends(tmp_path: Path) -> None:
    with IntakeProcess(tmp_path, FilesConfig(path="nowhere/*.jsonl")) as intake:
        assert intake.process.wait(PATIENCE_S) == 1
        assert intake.status.state == "failed"
        assert "nowhere does not exist" in intake.status.reason
        assert "nowhere does not exist" in intake.error()
        assert "Traceback" not in intake.error()


def test_a_second_intake_of_the_same_source_is_refused(tmp_path: Path, folder: Path) -> None:
    with IntakeProcess(tmp_path, files_config()) as first:
        first.wait_for(lambda status: status.updated_at > 0)
        with IntakeProcess(tmp_path, files_config()) as second:
            assert second.process.wait(PATIENCE_S) == 1
            assert "another process is writing this log" in second.error()
        assert first.status.state == "receiving"


def test_a_huge_line_is_an_event_with_an_error_and_is_never_held_whole(tmp_path: Path, folder: Path) -> None:
    with (folder / "a.jsonl").open("wb") as file:
        file.write(b"before\n")
        file.seek(300 * MIB)  # a hole: 300 MiB of zero bytes without a newline
        file.write(b"\nafter\n")
    with IntakeProcess(tmp_path, files_config(max_event_bytes=MIB), once=True) as intake:
        intake.wait_for_state("ended")
        peak = Path(f"/proc/{intake.process.pid}/status").read_text().partition("VmHWM:")[2].split()[0]
        assert intake.end() == 0
    assert int(peak) < 200 * 1024
    reader = LogReader(tmp_path / "state" / "log" / "incoming")
    rows = [row for _, batch in reader.read(0, 3) for row in batch.to_pylist()]
    assert [row["payload"][:6] for row in rows] == [b"before", b"\0" * 6, b"after"]
    assert "larger than max_event_bytes" in rows[1]["error"]
    assert len(rows[1]["payload"]) == 64 * 1024


def test_an_intake_without_a_job_says_who_starts_it() -> None:
    command = [sys.executable, "-m", "signoff.intake"]
    done = subprocess.run(command, input=b"", capture_output=True, check=False)
    assert done.returncode == 1
    assert b"started by `signoff run`" in done.stderr


def test_the_registry_stays_small_when_files_go(tmp_path: Path, folder: Path) -> None:
    write_lines(folder, files=50, lines=2)
    config = files_config(on_acknowledge="delete")
    with IntakeProcess(tmp_path, config, once=True, acknowledges=False) as intake:
        intake.wait_for(lambda status: status.drained)
        assert intake.end() == 0
    registry = sqlite3.connect(tmp_path / "state" / "intake" / "incoming" / "files.db")
    assert registry.execute("SELECT count(*) FROM files").fetchone() == (0,)
    registry.close()


@pytest.mark.parametrize("name", ["plain", "packed"])
def test_while_it_reads_a_run_with_an_end_says_about_how_many_events_there_will_be(
    tmp_path: Path, folder: Path, name: str
) -> None:
    """Also of a file that is compressed. Its log is too small for all of them, so it waits in the middle."""
    lines = write_lines(folder, files=20, lines=5000)
    noise = random.Random(1)
    for path in folder.iterdir():
        rows = path.read_bytes().split(b"\n")[:-1]
        rows = [row[:-60] + noise.randbytes(30).hex().encode() for row in rows]
        path.write_bytes(b"\n".join(rows) + b"\n")
        if name == "packed":
            path.with_suffix(".jsonl.gz").write_bytes(gzip.compress(path.read_bytes(), 1))
            path.unlink()
    config = files_config(path="in/*", log=LogSettings(segment_bytes=MIB, max_bytes=6 * MIB))
    with IntakeProcess(tmp_path, config, once=True) as intake:
        held = intake.wait_for_state("held")
        assert held.expected is not None and 0 < held.next_sequence < len(lines)
        assert abs(held.expected - len(lines)) < 0.1 * len(lines)
        settle(tmp_path, 0, held.durable_sequence)
        trim(tmp_path / "state" / "log" / "incoming", held.durable_sequence)
        intake.kill()
    roomy = files_config(path="in/*")
    with IntakeProcess(tmp_path, roomy, once=True) as intake:
        ended = intake.wait_for_state("ended")
        assert ended.next_sequence == len(lines) and ended.expected is None
    with IntakeProcess(tmp_path, roomy) as intake:
        assert intake.wait_for_state("receiving").expected is None, "more may come"
