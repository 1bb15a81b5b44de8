"""`python -m signoff_alarms simulate` to files and pipes: exactly the bytes of the simulation."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from signoff_alarms.__main__ import app
from signoff_alarms.simulator import (
    FileTarget,
    Kind,
    Sent,
    Simulation,
    SimulationConfig,
    simulate,
)
from tests.servers import wait_until

COMMAND = [sys.executable, "-m", "signoff_alarms", "simulate"]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["simulate", *map(str, arguments)])


def expected(count: int, seed: int = 7, first: int = 0, **fields: object) -> list[bytes]:
    config = SimulationConfig.model_validate(fields)
    return list(Simulation(seed, config).payloads(first, count).to_pylist())


def lines(*files: Path) -> list[bytes]:
    content = b"".join(file.read_bytes() for file in files)
    assert content.endswith(b"\n")
    return content[:-1].split(b"\n")


def test_a_file_holds_the_messages_as_lines(tmp_path: Path) -> None:
    done = run("--count", 30_000, "--seed", 7, "--to", tmp_path / "alarms.jsonl")
    assert done.exit_code == 0, done.output
    assert lines(tmp_path / "alarms.jsonl") == expected(30_000)
    assert [file.name for file in tmp_path.iterdir()] == ["alarms.jsonl"]


def test_the_summary_says_how_many_there_are_of_each_kind(tmp_path: Path) -> None:
    done = run("--count", 30_000, "--seed", 7, "--errors", 50, "--late", 0.01, "--to", tmp_path / "a.jsonl")
    messages = Simulation(7, SimulationConfig(errors=50, late=0.01)).messages(0, 30_000)
    kinds = messages["kind"].cast("string").to_pylist()
    for kind in list(Kind)[2:]:
        assert f"{kind} {kinds.count(kind):,}" in done.output
    assert f"alarms      {kinds.count('alarm'):10,}" in done.output
    assert f"duplicates  {kinds.count('duplicate'):10,}" in done.output
    assert f"late        {messages['late'].to_pylist().count(True):10,}" in done.output
    assert f"121 {messages['dataPointId'].to_pylist().count(121):,}" in done.output


def test_several_files_hold_the_stream_one_after_the_other(tmp_path: Path) -> None:
    assert run("--count", 10_000, "--seed", 7, "--files", 3, "--to", tmp_path / "out").exit_code == 0
    files = sorted((tmp_path / "out").iterdir())
    assert [file.name for file in files] == [f"alarms-0000{number}.jsonl" for number in range(3)]
    assert [len(lines(file)) for file in files] == [3334, 3333, 3333]
    assert lines(*files) == expected(10_000)


def test_csv_files_hold_the_same_alarms_under_a_header(tmp_path: Path) -> None:
    options = ("--count", 9_000, "--seed", 7, "--errors", 50, "--csv")
    done = run(*options, "--files", 2, "--to", tmp_path / "out")
    assert done.exit_code == 0, done.output
    files = sorted((tmp_path / "out").iterdir())
    assert [file.name for file in files] == ["alarms-00000.csv", "alarms-00001.csv"]
    found = []
    for file in files:
        with file.open(newline="") as rows:
            assert rows.readline() == (
                "station_id,datapoint_id,alarm_id,event_time,value,valueThreshold,isActive\n"
            )
            found += list(csv.reader(rows))
    names = ["stationId", "dataPointId", "alarmId", "eventTime", "value", "valueThreshold", "isActive"]
    for row, payload in zip(found, expected(9_000, errors=50), strict=True):
        try:
            message = json.loads(payload)
        except ValueError:
            assert row == [payload.decode()]
            continue
        read = [None if text == "" else text for text in row]
        for name, text in zip(names, read, strict=True):
            value = message.get(name)
            if isinstance(value, str) or value is None:
                assert text == value
            else:
                assert text is not None and json.loads(text) == value
    assert run("--count", 3, "--csv", "--to", "amqp://x/").exit_code == 2


@pytest.mark.servers
def test_csv_to_standard_output_begins_with_the_header() -> None:
    pipe = subprocess.run(
        [*COMMAND, "--count", "3", "--seed", "7", "--csv", "--to", "-"], capture_output=True, text=True
    )
    assert pipe.stdout.splitlines()[0].startswith("station_id,") and len(pipe.stdout.splitlines()) == 4


def test_low_batteries_report_309_if_asked_to(tmp_path: Path) -> None:
    plain, asked = (Simulation(7, SimulationConfig(low_battery=number)) for number in (311, 309))
    before, after = (one.messages(0, 20_000).to_pylist() for one in (plain, asked))
    changed = [(a["alarmId"], b["alarmId"]) for a, b in zip(before, after, strict=True) if a != b]
    assert set(changed) == {(311, 309)} and len(changed) > 1_000
    assert all(row["dataPointId"] == 141 for row in after if (row["alarmId"] == 309) and row not in before)


def test_a_stream_is_gone_on_with_from_a_number(tmp_path: Path) -> None:
    options = ("--count", 20_000, "--seed", 7, "--days", 30)
    run(*options, "--to", tmp_path / "all.jsonl")
    run(*options, "--from", 12_345, "--to", tmp_path / "rest.jsonl")
    assert lines(tmp_path / "rest.jsonl") == lines(tmp_path / "all.jsonl")[12_345:]


@pytest.mark.servers
def test_standard_output_holds_messages_only() -> None:
    done = subprocess.run([*COMMAND, "--count", "500", "--seed", "7", "--to", "-"], capture_output=True)
    assert done.stdout.splitlines() == expected(500)
    assert b"500 messages" in done.stderr


@pytest.mark.servers
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_whole_lines_and_says_how_to_go_on(tmp_path: Path, stop: signal.Signals) -> None:
    file, part = tmp_path / "alarms.jsonl", tmp_path / "alarms.jsonl.part"
    options = ["--count", "1000000", "--seed", "7", "--rate", "20000", "--to", str(file)]
    process = subprocess.Popen([*COMMAND, *options], stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    wait_until(lambda: part.exists() and part.stat().st_size > 100_000)
    process.send_signal(stop)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 128 + stop
    written = lines(file)
    assert not part.exists()
    assert written == expected(len(written))
    assert f"--from {len(written)} " in errors.decode()


def test_the_rate_is_kept(tmp_path: Path) -> None:
    simulation, sent = Simulation(7, SimulationConfig(late=0)), Sent(0)
    list(simulation.pieces(0, 1))  # so that only the sending is timed
    started = time.monotonic()
    with FileTarget([tmp_path / "a.jsonl"], 0, 40_000) as target:
        simulate(simulation, target, sent, 40_000, rate=40_000)
    assert time.monotonic() - started > 0.95
    assert lines(tmp_path / "a.jsonl") == expected(40_000, late=0)


@pytest.mark.servers
def test_a_failure_to_write_leaves_whole_lines(tmp_path: Path) -> None:
    """The limit of a file's size stands for a full disk."""
    limited = (
        "import resource, runpy, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (5_000_100, 5_000_100));"
        "sys.argv[0] = 'simulate'; runpy.run_module('signoff_alarms', run_name='__main__')"
    )
    options = ["simulate", "--count", "100000", "--seed", "7", "--to", str(tmp_path / "a.jsonl")]
    done = subprocess.run([sys.executable, "-c", limited, *options], capture_output=True, text=True)
    assert done.returncode == 1
    written = lines(tmp_path / "a.jsonl")
    assert written == expected(len(written))
    assert "a.jsonl: cannot write: File too large" in done.stderr
    assert f"{len(written):,} messages were sent; the same command with --from {len(written)}" in done.stderr


def test_a_file_that_exists_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "alarms.jsonl"
    file.write_text("precious")
    done = run("--count", 10, "--to", file)
    assert done.exit_code == 1
    assert f"{file} exists already" in done.output
    assert file.read_text() == "precious"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--late", "4"], "--late: Input should be less than or equal to 0.5"),
        (["--disorder", "5 parsecs"], '--disorder: "5 parsecs" is not a duration'),
        (["--start", "yesterday"], "--start: Input should be a valid datetime"),
        (["--per-day", "20000000"], "20,000,000 alarms a day, 5,208,333 happen while one is under way"),
        (["--rate", "0"], "--rate: it must be more than 0"),
        (["--days", "0"], "--days: it must be more than 0"),
        (["--from", "10"], "--from: there are only 10 messages in all"),
    ],
)
def test_wrong_options_are_named(tmp_path: Path, options: list[str], message: str) -> None:
    done = run("--count", 10, "--to", tmp_path / "a.jsonl", *options)
    assert done.exit_code == 2
    assert message in " ".join(done.output.split())
    assert list(tmp_path.iterdir()) == []
