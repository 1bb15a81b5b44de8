"""Periods of a schedule, each once, and runs over data that still arrives: real processes all the way."""

from __future__ import annotations

import json
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from signoff.jobs.records import Records
from tests.promises.product import SIGNOFF, SPARK, Running
from tests.promises.test_clock_steps import WallClock, wall_clock  # noqa: F401
from tests.servers import wait_until

pytestmark = pytest.mark.spark

FROM, TO = "2026-10-23T06:00:00+03:00", "2026-10-24T06:00:00+03:00"
JOB: dict[str, Any] = {
    "name": "days",
    "spark": SPARK,
    "parameters": {"from": "timestamp", "to": "timestamp"},
    "period": ["from", "to"],
    "schedule": {"cron": "0 6 * * *", "timezone": "Europe/Helsinki", "catch_up": "all"},
    "sources": {
        "seen": {
            "type": "table", "path": "./seen.db", "table": "seen", "where": "at >= :from AND at < :to",
            "complete_to": "max(at)",
        }
    },
    "transforms": {
        "counted": {
            "type": "sql", "input": "seen",
            "query": "SELECT :from AS since, :to AS upto, count(*) AS seen FROM seen",
        }
    },
    "sinks": {"table": {"type": "sqlite", "input": "counted", "path": "./out.db", "table": "days"}},
}  # fmt: skip


def write_job(directory: Path, **changes: Any) -> Path:
    file = directory / "job.yaml"
    file.write_text(yaml.safe_dump({**JOB, **changes}, sort_keys=False))
    return file


def see(directory: Path, moments: list[str], table: str = "seen") -> None:
    with closing(sqlite3.connect(directory / "seen.db")) as db:
        db.execute(f"CREATE TABLE IF NOT EXISTS {table} (at TEXT)")
        db.executemany(f"INSERT INTO {table} VALUES (?)", [(moment,) for moment in moments])
        db.commit()


def hours(first: datetime, number: int) -> list[str]:
    return [f"{first.astimezone(UTC) + timedelta(hours=n):%Y-%m-%dT%H:%M:%SZ}" for n in range(number)]


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """`signoff jobs …`; ended with the test, with all it has started."""
    begun: list[Running] = []

    def start(*arguments: str) -> Running:
        begun.append(Running([str(SIGNOFF), "jobs", *arguments], tmp_path / f"{len(begun)}.txt"))
        return begun[-1]

    yield start
    for each in begun:
        each.clean_up()
    for run in runs_of(tmp_path):
        with suppress(psutil.NoSuchProcess):
            run.kill()


def runs_of(directory: Path) -> list[psutil.Process]:
    """The processes that do runs of the job; also those whose scheduler was killed."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            line = process.cmdline()
            if "run" in line and str(directory / "job.yaml") in line:
                found.append(process)
    return found


def runs_begun(directory: Path) -> Iterator[tuple[psutil.Process, int]]:
    """The runs that go on, and who has started each."""
    for run in runs_of(directory):
        with suppress(psutil.Error):
            yield run, run.ppid()


def periods(state: Path) -> dict[str, str]:
    try:
        with closing(sqlite3.connect(f"{(state / 'ledger.db').as_uri()}?mode=ro", uri=True)) as db:
            return {"first look": "", **dict(db.execute("SELECT name, state FROM periods"))} if (
                db.execute("SELECT 1 FROM schedule").fetchone()
            ) else {}  # fmt: skip
    except sqlite3.OperationalError:
        return {}


def test_a_scheduler_says_at_its_start_when_its_next_run_is_and_which_values_it_has(
    tmp_path: Path, command: Callable[..., Running]
) -> None:
    scheduler = command("schedule", str(write_job(tmp_path)))
    scheduler.wait_for(lambda: "next run" in scheduler.output)
    line = r"^\d\d:\d\d:\d\d info    next run \d{4}-\d\d-\d\d 06:00 Europe/Helsinki, [a-z]+=\S+"
    assert re.search(line, scheduler.output, re.MULTILINE), scheduler.output
    assert scheduler.terminate().code == 0


@pytest.mark.case(50)
def test_each_period_is_run_once_by_two_schedulers_through_kills_downtime_and_a_day_of_25_hours(
    tmp_path: Path,
    command: Callable[..., Running],
    wall_clock: WallClock,  # noqa: F811
) -> None:
    file, state = write_job(tmp_path), tmp_path / "state"
    begin = datetime.fromisoformat(FROM)
    see(tmp_path, hours(begin, 120))

    def set_to(moment: str) -> None:
        wall_clock.set(int(datetime.fromisoformat(moment).timestamp() - time.time()))

    def states() -> list[str]:
        return [state for name, state in periods(state).items() if name != "first look"]

    set_to("2026-10-23T12:00:00+03:00")
    both = [command("schedule", str(file)) for _ in range(2)]
    both[0].wait_for(lambda: periods(state))
    set_to("2026-10-24T06:00:00+03:00")
    run, scheduler = both[0].wait_for(lambda: next(runs_begun(tmp_path), None))
    killed = next(each for each in both if each.pid == scheduler)
    other = both[1 - both.index(killed)]
    psutil.Process(killed.pid).kill()  # its run goes on without it, until that is killed as well
    with suppress(psutil.NoSuchProcess):  # both may have begun one, of which one ends at once
        run.kill()
    other.wait_for(lambda: states() == ["done"])

    other.terminate()
    set_to("2026-10-27T05:00:00+02:00")  # two periods later; one of them has a day of 25 hours
    both = [command("schedule", str(file)) for _ in range(2)]
    both[0].wait_for(lambda: states() == ["done"] * 3)
    for each in both:
        assert each.terminate().code == 0, each.output

    with Records(state, readonly=True) as records:
        found = sorted((each.asked_by, each.state, each.edition) for each in records.newest())
    ends = ["2026-10-24T06:00:00+03:00", "2026-10-25T06:00:00+02:00", "2026-10-26T06:00:00+02:00"]
    assert found == [(f"schedule {end}", "done", 1) for end in ends]
    with closing(sqlite3.connect(tmp_path / "out.db")) as db:
        days = sorted(db.execute("SELECT since, upto, seen FROM days"))
    edges = [f"{datetime.fromisoformat(each).astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}" for each in (FROM, *ends)]
    assert days == [(*pair, seen) for pair, seen in zip(pairwise(edges), (24, 25, 24), strict=True)]


@pytest.mark.case(51)
def test_a_run_says_up_to_where_its_input_was_complete_and_done_again_replaces_its_report(
    tmp_path: Path, command: Callable[..., Running]
) -> None:
    """The other table is as another database writes its times; it is empty at first, and claims nothing."""
    other = {"type": "table", "path": "./seen.db", "table": "other", "complete_to": "max(at)"}
    query = "SELECT count(*) AS seen, (SELECT count(*) FROM other) AS more FROM seen"
    counted = {"type": "sql", "inputs": ["seen", "other"], "query": query}
    report = {
        "type": "report", "input": "counted", "path": "./reports/day", "formats": ["json"], "title": "A day",
    }  # fmt: skip
    file = write_job(
        tmp_path,
        sources={**JOB["sources"], "other": other},
        transforms={"counted": counted},
        sinks={"report": report},
    )
    see(tmp_path, hours(datetime.fromisoformat(FROM), 10))
    see(tmp_path, [], "other")

    def run() -> tuple[dict[str, Any], dict[str, Any]]:
        running = command("run", str(file), "-p", f"from={FROM}", "-p", f"to={TO}", "--json", "--quiet")
        done = running.wait()
        assert done.code == 0, done.output
        record = next(json.loads(line) for line in done.output.splitlines() if line.startswith("{"))
        return record, json.loads((tmp_path / "reports" / "day.json").read_bytes())

    record, said = run()
    assert (record["run"][-2:], record["complete_to"]) == ("#1", None)
    assert said["inputs"]["counted"]["rows"][0]["seen"] == 10 and "Input complete to" not in said["about"]

    see(tmp_path, hours(datetime.fromisoformat(FROM), 24)[10:])
    see(tmp_path, ["2026-10-23 21:30:00+00"], "other")
    record, said = run()
    assert (record["run"][-2:], record["complete_to"]) == ("#2", "2026-10-23 21:30:00+00")
    assert record["inputs"]["seen"]["complete_to"] == "2026-10-24T02:00:00Z"
    assert said["inputs"]["counted"]["rows"][0]["seen"] == 24
    assert said["about"]["Input complete to"] == "2026-10-23 21:30:00+00"
    assert [each.name for each in (tmp_path / "reports").glob("[!.]*")] == ["day.json"]
    wait_until(lambda: not runs_of(tmp_path))
