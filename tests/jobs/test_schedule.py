"""Each period is run once: through downtime, restarts, two processes and kills."""

from __future__ import annotations

import multiprocessing
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from signoff.jobs.children import ChildRun
from signoff.jobs.parameters import Asked, asked, to_json
from signoff.jobs.records import Records
from signoff.jobs.run import load_job
from signoff.jobs.schedule import Scheduler, wanted
from signoff.jobs.state_dir import RunGoesOn, claim, run_lock
from signoff.pipeline.graph import Graph
from tests.jobs.scenes import write_job

BEGIN = datetime.fromisoformat("2026-03-27T12:00:00+00:00").timestamp()
DAY, HOUR = 86_400.0, 3600.0


def job(directory: Path, **schedule: Any) -> Graph:
    fields = {"cron": "0 6 * * *", "timezone": "Europe/Helsinki", "parameters": {"day": "{start:%Y-%m-%d}"}}
    graph = load_job(write_job(directory, schedule={**fields, **schedule}))
    claim(graph)
    return graph


class Clock:
    now = BEGIN

    def __call__(self) -> float:
        return self.now


@dataclass
class Machine:
    """The time of day, which somebody sets, and the time since it was started."""

    now: float = BEGIN
    up: float = 0.0

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.up += seconds

    def scheduler(self, graph: Graph, do: Callable[[Asked, str], int], boot: str = "first") -> Scheduler:
        return Scheduler(graph, do, lambda: self.now, steady=lambda: self.up, boot=boot)


def recorded(graph: Graph, runs: list[str], codes: list[int] | None = None) -> Callable[[Asked, str], int]:
    """Does what a run does to the records, without Spark."""

    def do(wanted: Asked, asked_by: str) -> int:
        with run_lock(graph.state, wanted.key), Records(graph.state) as records:
            if records.is_done(asked_by):
                return 0
            runs.append(wanted.key)
            record = records.begin(wanted.key, asked_by, to_json(wanted.values), (None, None))
            code = codes.pop(0) if codes else 0
            records.change(record, state="failed" if code else "done")
        return code

    return do


def all_due(scheduler: Scheduler) -> None:
    while scheduler.look():
        pass


def test_a_schedule_says_when_its_next_run_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "signoff.jobs")
    graph = job(tmp_path)
    scheduler = Machine().scheduler(graph, recorded(graph, []))
    scheduler.announce()
    scheduler.close()
    assert caplog.messages == ["next run 2026-03-28 06:00 Europe/Helsinki, day=2026-03-27, least=0"]


def test_a_period_is_run_when_it_has_ended_and_only_then(tmp_path: Path) -> None:
    graph, clock, runs = job(tmp_path), Clock(), list[str]()
    scheduler = Scheduler(graph, recorded(graph, runs), clock)
    all_due(scheduler)
    assert not runs  # what ended before the schedule was first looked at was never asked for
    clock.now = datetime.fromisoformat("2026-03-28T05:59:59+02:00").timestamp()
    all_due(scheduler)
    assert not runs
    clock.now += 1
    all_due(scheduler)
    all_due(scheduler)
    assert runs == ["failures@day=2026-03-27"]


@pytest.mark.parametrize(
    ("catch_up", "days"), [("all", ["27", "28", "29", "30"]), ("latest", ["30"]), ("none", [])]
)
def test_after_downtime_periods_are_caught_up_with_as_configured(
    tmp_path: Path, catch_up: str, days: list[str]
) -> None:
    """Over the night in which the clock is put forward: the day of 23 hours is one period."""
    graph, clock, runs = job(tmp_path, catch_up=catch_up), Clock(), list[str]()
    Scheduler(graph, recorded(graph, runs), clock).look()
    clock.now += 4 * DAY
    scheduler = Scheduler(graph, recorded(graph, runs), clock)
    all_due(scheduler)
    assert runs == [f"failures@day=2026-03-{day}" for day in days]
    assert list(scheduler.states().values()).count("skipped") == 4 - len(days)
    clock.now += DAY  # and from then on as ever, although somebody looks late by a minute
    clock.now = datetime.fromisoformat("2026-04-01T06:00:30+03:00").timestamp()
    all_due(scheduler)
    assert runs[-1] == "failures@day=2026-03-31"


def test_the_clock_set_back_runs_nothing_twice(tmp_path: Path) -> None:
    graph, clock, runs = job(tmp_path, catch_up="all"), Clock(), list[str]()
    scheduler = Scheduler(graph, recorded(graph, runs), clock)
    scheduler.look()
    for step in (2 * DAY, -DAY, DAY, -HOUR, HOUR):
        clock.now += step
        all_due(scheduler)
    assert runs == ["failures@day=2026-03-27", "failures@day=2026-03-28"]


def test_a_kill_between_the_runs_record_and_the_periods_does_not_run_it_again(tmp_path: Path) -> None:
    graph, clock, runs = job(tmp_path), Clock(), list[str]()
    do = recorded(graph, runs)

    def killed(wanted: Asked, asked_by: str) -> int:
        do(wanted, asked_by)
        raise KeyboardInterrupt

    scheduler = Scheduler(graph, killed, clock)
    scheduler.look()
    clock.now += DAY
    with pytest.raises(KeyboardInterrupt):
        scheduler.look()
    again = Scheduler(graph, do, clock)
    all_due(again)
    assert len(runs) == 1 and list(again.states().values()) == ["done"]


def test_a_run_that_fails_is_tried_again_and_then_left_to_people(tmp_path: Path) -> None:
    graph, clock, runs = job(tmp_path), Clock(), list[str]()
    scheduler = Scheduler(graph, recorded(graph, runs, [1, 1, 1]), clock)
    scheduler.look()
    clock.now += DAY
    for _ in range(10):
        all_due(scheduler)
        clock.now += 300
    assert len(runs) == 3 and list(scheduler.states().values()) == ["failed"]


def test_a_run_that_another_process_does_is_left_to_it(tmp_path: Path) -> None:
    graph, clock = job(tmp_path), Clock()

    def busy(wanted: Asked, asked_by: str) -> int:
        raise RunGoesOn("elsewhere")

    scheduler = Scheduler(graph, busy, clock)
    scheduler.look()
    clock.now += DAY
    assert scheduler.look() == 0 and list(scheduler.states().values()) == ["pending"]


def _look(directory: str, now: float, times: int) -> None:
    graph = load_job(Path(directory) / "job.yaml")
    runs: list[str] = []
    done = recorded(graph, runs)
    clock = Clock()
    clock.now = now
    scheduler = Scheduler(graph, done, clock)
    for _ in range(times):
        clock.now += HOUR
        all_due(scheduler)
    with open(Path(directory) / "runs", "a") as file:
        file.writelines(f"{key}\n" for key in runs)


def test_two_processes_run_each_period_once(tmp_path: Path) -> None:
    graph = job(
        tmp_path, cron="*/10 * * * *", catch_up="all", parameters={"day": "2021-05-01", "least": "{end:%s}"}
    )
    Scheduler(graph, recorded(graph, []), Clock()).look()
    context = multiprocessing.get_context("spawn")
    both = [context.Process(target=_look, args=(str(tmp_path), BEGIN, 20)) for _ in range(2)]
    for each in both:
        each.start()
    for each in both:
        each.join(120)
    with Records(graph.state, readonly=True) as records:
        by = [record.asked_by for record in records.newest()]
    assert len(by) == len(set(by)) == 20 * 6


def test_the_values_of_a_period_are_those_of_its_zone(tmp_path: Path) -> None:
    graph = job(tmp_path)
    scheduler = Scheduler(graph, lambda *_: 0, clock := Clock())
    scheduler.look()
    clock.now += DAY
    scheduler.decide()
    (due,) = scheduler.pending()
    found = wanted(graph, due.period)
    assert found.key == asked(graph, {"day": "2026-03-27"}).key
    assert [each and each.isoformat() for each in found.period] == [
        "2026-03-27T04:00:00+00:00", "2026-03-28T04:00:00+00:00",
    ]  # fmt: skip
    command = ChildRun(tmp_path / "job.yaml").command(found, due.asked_by)
    assert "day=2026-03-27" in command and "2026-03-27T04:00:00+00:00/2026-03-28T04:00:00+00:00" in command


def test_a_run_that_is_stopped_with_its_scheduler_was_no_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else three restarts in the course of a long run, and the period would be given up."""
    graph, clock = job(tmp_path), Clock()

    class Slow(ChildRun):
        def command(self, wanted: Asked, asked_by: str) -> list[str]:
            self.stop()  # it comes while the run goes on
            return [sys.executable, "-c", "import signal; signal.pause()"]

    Scheduler(graph, Slow(tmp_path / "job.yaml"), clock).look()
    clock.now += DAY
    for _ in range(4):
        scheduler = Scheduler(graph, Slow(tmp_path / "job.yaml"), clock)
        assert not scheduler.look()
        scheduler.close()
        clock.now += DAY / 24
    runs = list[str]()
    all_due(Scheduler(graph, recorded(graph, runs), clock))
    assert runs == ["failures@day=2026-03-27"]


def test_a_run_that_waits_for_a_sink_is_asked_for_until_it_is_done(tmp_path: Path) -> None:
    graph, clock, tries = job(tmp_path), Clock(), [0]

    def do(wanted: Asked, asked_by: str) -> int:
        tries[0] += 1
        with Records(graph.state) as records:
            record = records.begin(wanted.key, asked_by, to_json(wanted.values), (None, None))
            records.change(record, state="delivering" if tries[0] < 7 else "done")
        return 3 if tries[0] < 7 else 0

    scheduler = Scheduler(graph, do, clock)
    scheduler.look()
    clock.now = datetime.fromisoformat("2026-03-28T06:00:00+02:00").timestamp()
    for _ in range(7):
        assert list(scheduler.states().values()) in ([], ["pending"])
        scheduler.look()
        clock.now += 15 * 60
    assert tries == [7] and list(scheduler.states().values()) == ["done"]


@pytest.mark.parametrize("late", [False, True])
def test_a_run_whose_tables_are_incomplete_is_asked_for_for_a_day(tmp_path: Path, late: bool) -> None:
    """Also by a scheduler that is started anew each time; then the period has failed."""
    graph, clock, runs = job(tmp_path), Clock(), list[str]()
    do = recorded(graph, runs, [4] * (1000 if late else 9))
    Scheduler(graph, do, clock).look()
    clock.now = datetime.fromisoformat("2026-03-28T06:00:00+02:00").timestamp()
    for _ in range(4 * 23):
        scheduler = Scheduler(graph, do, clock)
        scheduler.look()
        assert list(scheduler.states().values()) == ["pending" if late or len(runs) < 10 else "done"]
        clock.now += 15 * 60
    assert len(runs) > 9 if late else len(runs) == 10
    if late:
        clock.now += HOUR
        for _ in range(4):
            all_due(scheduler)
            assert scheduler.states()["2026-03-28T06:00:00+02:00"] in ("pending", "failed")
            clock.now += 15 * 60
        assert scheduler.states()["2026-03-28T06:00:00+02:00"] == "failed"


def test_a_period_whose_run_a_person_has_finished_is_not_run_again(tmp_path: Path) -> None:
    """A sink was down when the schedule asked; somebody has run the day by hand when it was up again."""
    graph, clock, runs = job(tmp_path), Clock(), list[str]()

    def owed(wanted: Asked, asked_by: str) -> int:
        runs.append(wanted.key)
        with Records(graph.state) as records:
            records.change(
                records.begin(wanted.key, asked_by, to_json(wanted.values), (1.0, 2.0)), state="delivering"
            )
        return 3

    scheduler = Scheduler(graph, owed, clock)
    scheduler.decide()
    clock.now += DAY
    all_due(scheduler)
    by_hand = asked(graph, {"day": "2026-03-27"})
    with Records(graph.state) as records:
        begun = records.begin(by_hand.key, "person", to_json(by_hand.values), (None, None))
        assert (begun.asked_by, begun.period) == ("schedule 2026-03-28T06:00:00+02:00", (1.0, 2.0))
        records.change(begun, state="done")
    clock.now += HOUR
    all_due(scheduler)
    assert len(runs) == 1 and set(scheduler.states().values()) == {"done"}


def test_a_period_whose_run_was_cancelled_is_not_run(tmp_path: Path) -> None:
    graph, clock, begun = job(tmp_path), Clock(), [0]

    def do(wanted: Asked, asked_by: str) -> int:
        begun[0] += 1
        with Records(graph.state) as records:
            record = records.begin(wanted.key, asked_by, to_json(wanted.values), (None, None))
            records.change(record, state="cancelled")
        return 1

    scheduler = Scheduler(graph, do, clock)
    scheduler.decide()
    clock.now += DAY
    for _ in range(3):
        all_due(scheduler)
        clock.now += HOUR
    assert begun == [1] and list(scheduler.states().values()) == ["failed"]


def counted(graph: Graph, codes: list[int]) -> Callable[[Asked, str], int]:
    """Runs that end with these codes; 3: their rows are owed."""

    def do(wanted: Asked, asked_by: str) -> int:
        code = codes.pop(0)
        state = {0: "done", 1: "failed", 3: "delivering"}.get(code, "computing")
        with Records(graph.state) as records:
            record = records.begin(wanted.key, asked_by, to_json(wanted.values), (None, None))
            records.change(record, state=state)
        return code

    return do


@pytest.mark.parametrize("code", [-9, 137, 3])
def test_a_run_that_was_killed_or_is_owed_has_not_failed(tmp_path: Path, code: int) -> None:
    graph, clock, codes = job(tmp_path), Clock(), [code] * 5 + [1, 1, 0]
    scheduler = Scheduler(graph, counted(graph, codes), clock)
    scheduler.decide()
    clock.now += DAY
    while codes:
        assert scheduler.look() == 1
        assert scheduler.look() == 0  # not at once
        clock.now += 900
    assert set(scheduler.states().values()) == {"done"}


def test_of_many_periods_that_were_missed_the_latest_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("signoff.jobs.schedule._MOST_AT_ONCE", 3)
    graph, clock, runs = job(tmp_path, catch_up="latest"), Clock(), list[str]()
    scheduler = Scheduler(graph, recorded(graph, runs), clock)
    scheduler.decide()
    clock.now += 7 * DAY
    for _ in range(4):
        all_due(scheduler)
    assert runs == ["failures@day=2026-04-02"] and len(scheduler.states()) == 7


def test_a_clock_that_was_ahead_for_a_look_takes_no_period_away(tmp_path: Path) -> None:
    graph, clock, runs = job(tmp_path, catch_up="latest"), Clock(), list[str]()
    scheduler = Scheduler(graph, recorded(graph, runs, [1]), clock)
    scheduler.decide()
    clock.now += 30 * DAY
    assert scheduler.look() == 1  # it fails, and waits for another try
    for days in range(3):
        clock.now = BEGIN + days * DAY
        all_due(scheduler)
    assert runs[1:] == ["failures@day=2026-03-27", "failures@day=2026-03-28"]


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("codes", [[0], [1, 1, 1]])
def test_a_run_of_a_period_that_had_not_ended_is_done_again_when_it_has(
    tmp_path: Path, codes: list[int], restarted: bool
) -> None:
    """The clock was ahead for one run, which did not see the data of the period."""
    graph, machine, runs = job(tmp_path, catch_up="all"), Machine(), list[str]()
    do = recorded(graph, runs, codes)
    scheduler = machine.scheduler(graph, do)
    scheduler.decide()
    machine.now += DAY
    for _ in range(10):
        all_due(scheduler)
        machine.wait(120)
    early = len(runs)
    assert list(scheduler.states().values()) in (["done"], ["failed"])
    machine.now -= DAY
    all_due(scheduler)
    assert len(runs) == early
    if restarted:
        scheduler, machine.up = machine.scheduler(graph, do, "second"), 0.0
    for _ in range(3):
        machine.wait(DAY)
        all_due(scheduler)
        assert set(scheduler.states().values()) == {"done"}
    days = [key.partition("=")[2] for key in runs[early:]]
    assert days == ["2026-03-27", "2026-03-28", "2026-03-29"]


def test_a_clock_that_is_behind_for_a_while_has_no_run_done_again(tmp_path: Path) -> None:
    """What has run began after the end of its period, as the clock says when it is right again."""
    graph, machine, runs = job(tmp_path, catch_up="all"), Machine(), list[str]()
    scheduler = machine.scheduler(graph, recorded(graph, runs))
    scheduler.decide()
    machine.wait(DAY)
    all_due(scheduler)
    machine.now -= DAY
    for _ in range(3):
        machine.wait(HOUR)
        all_due(scheduler)
    machine.now += DAY
    all_due(scheduler)
    assert runs == ["failures@day=2026-03-27"]


def test_a_clock_that_was_years_ahead_at_the_first_look_keeps_no_period_from_its_run(tmp_path: Path) -> None:
    graph, clock, runs = job(tmp_path), Clock(), list[str]()
    clock.now = BEGIN + 3000 * DAY
    scheduler = Scheduler(graph, recorded(graph, runs), clock)
    all_due(scheduler)
    for days in range(3):
        clock.now = BEGIN + days * DAY
        all_due(scheduler)
    assert runs == ["failures@day=2026-03-27", "failures@day=2026-03-28"]


def test_periods_that_a_release_before_has_noted_are_known(tmp_path: Path) -> None:
    graph, clock, runs = job(tmp_path), Clock(), list[str]()
    with Records(graph.state) as records, records.store.write() as db:
        db.execute("CREATE TABLE schedule (since REAL NOT NULL)")
        db.execute("INSERT INTO schedule VALUES (?)", (BEGIN,))
        db.execute(
            "CREATE TABLE periods (end REAL PRIMARY KEY, name TEXT NOT NULL, start_name TEXT NOT NULL, "
            "state TEXT NOT NULL, tries INTEGER NOT NULL DEFAULT 0, next_try REAL NOT NULL DEFAULT 0)"
        )
    clock.now += DAY
    all_due(Scheduler(graph, recorded(graph, runs), clock))
    assert runs == ["failures@day=2026-03-27"]


def test_a_run_that_another_process_does_is_not_even_started(tmp_path: Path) -> None:
    graph, clock, runs = job(tmp_path), Clock(), list[str]()
    scheduler = Scheduler(graph, recorded(graph, runs), clock)
    scheduler.decide()
    clock.now += DAY
    with run_lock(graph.state, "failures@day=2026-03-27"):
        scheduler.do = lambda *_: pytest.fail("it was started")
        all_due(scheduler)
    scheduler.do = recorded(graph, runs)
    all_due(scheduler)
    assert runs == ["failures@day=2026-03-27"]


def test_a_period_that_cannot_be_asked_for_keeps_no_other_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`check` finds what does not fit a parameter; this is for what it has not foreseen."""
    graph, clock, runs = job(tmp_path, catch_up="all"), Clock(), list[str]()
    scheduler = Scheduler(graph, recorded(graph, runs), clock)
    scheduler.decide()
    clock.now += 2 * DAY
    values = type(graph.settings.schedule).values

    def some(self: Any, start: datetime, end: datetime) -> dict[str, str]:
        return {"day": "none"} if start.day == 27 and wrong else values(self, start, end)

    wrong = True
    monkeypatch.setattr(type(graph.settings.schedule), "values", some)
    all_due(scheduler)
    assert runs == ["failures@day=2026-03-28"]
    wrong = False
    clock.now += HOUR
    all_due(scheduler)
    assert runs[1:] == ["failures@day=2026-03-27"]


def test_what_a_database_in_use_prevents_is_done_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As a full disk does. Neither a look nor what is decided while a run goes on ends the scheduler."""
    monkeypatch.setattr("signoff.ledger.store.BUSY_SECONDS", 0.05)
    graph, clock, runs = job(tmp_path), Clock(), list[str]()
    scheduler = Scheduler(graph, recorded(graph, runs), clock)
    scheduler.tried(scheduler.look)
    clock.now += DAY
    with closing(sqlite3.connect(graph.state / "ledger.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        for _ in range(3):
            assert scheduler.tried(scheduler.look) == 0
            scheduler.tried(scheduler.decide)
        other.execute("ROLLBACK")
    assert len([line for line in caplog.messages if "the schedule waits" in line]) == 1
    assert scheduler.tried(scheduler.look) == 1 and runs == ["failures@day=2026-03-27"]


def test_a_try_that_waits_since_the_clock_was_ahead_is_made(tmp_path: Path) -> None:
    graph, clock, runs = job(tmp_path), Clock(), list[str]()
    scheduler = Scheduler(graph, recorded(graph, runs, [1, 0]), clock)
    scheduler.decide()
    clock.now += DAY
    scheduler.decide()
    clock.now += 300 * DAY
    (due,) = scheduler.pending()
    assert scheduler._do(due)
    clock.now -= 300 * DAY
    assert scheduler.look() == 1 and set(scheduler.states().values()) == {"done"}


def test_a_job_that_is_wrong_for_a_while_is_waited_for(tmp_path: Path) -> None:
    """Somebody edits the file, or it is not there while it is replaced: three tries would be over at once."""
    graph, clock, runs = job(tmp_path), Clock(), list[str]()
    codes, done = [2] * 6, recorded(graph, runs)
    scheduler = Scheduler(graph, lambda *asks: codes.pop() if codes else done(*asks), clock)
    scheduler.decide()
    clock.now += DAY
    while codes:
        assert scheduler.look() == 1
        assert scheduler.look() == 0  # not at once
        assert list(scheduler.states().values()) == ["pending"]
        clock.now += 900
    all_due(scheduler)
    assert runs == ["failures@day=2026-03-27"] and set(scheduler.states().values()) == {"done"}


def test_an_edited_job_has_its_new_values_and_times_at_once(tmp_path: Path) -> None:
    graph, clock, asks = job(tmp_path), Clock(), list[Asked]()
    file = tmp_path / "job.yaml"

    def do(wanted: Asked, asked_by: str) -> int:
        asks.append(wanted)
        return recorded(graph, [])(wanted, asked_by)

    scheduler = Scheduler(graph, do, clock, read_again=lambda: load_job(file))
    scheduler.look()
    file.write_text(file.read_text() + "\nnonsense: [")
    clock.now += DAY
    assert scheduler.look() == 1  # as it was
    write_job(tmp_path, schedule={"cron": "0 7 * * *", "parameters": {"day": "2021-05-01", "least": "7"}})
    clock.now += DAY
    assert scheduler.look() == 1
    assert asks[-1].values["least"] == 7 and asks[-1].period[1] is not None and asks[-1].period[1].hour == 7


def test_periods_that_end_while_a_run_goes_on_were_not_missed(tmp_path: Path) -> None:
    graph, clock, runs = job(tmp_path, catch_up="none", timezone="UTC"), Clock(), list[str]()
    done, over = recorded(graph, runs), tmp_path / "over"

    class Long(ChildRun):
        def command(self, wanted: Asked, asked_by: str) -> list[str]:
            done(wanted, asked_by)
            wait = f"import os, time\nwhile not os.path.exists({str(over)!r}): time.sleep(0.01)"
            return [sys.executable, "-c", wait]

    def meanwhile() -> None:
        scheduler.decide()
        if len(scheduler.states()) < 3:
            clock.now += DAY
        else:
            over.touch()

    scheduler = Scheduler(graph, Long(tmp_path / "job.yaml", meanwhile), clock)
    scheduler.decide()
    clock.now = datetime.fromisoformat("2026-03-28T06:00:00+00:00").timestamp()
    all_due(scheduler)
    assert len(runs) == 3 and set(scheduler.states().values()) == {"done"}
