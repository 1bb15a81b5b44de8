"""Which rows are covered by which run, when runs begin, and what becomes of the rows: with runs that are only
recorded.

Each test could be killed anywhere: an invoker is thrown away and another made from what is durable.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from signoff.errors import StateError
from signoff.jobs.cancel import cancel
from signoff.jobs.parameters import asked, to_json
from signoff.jobs.records import Output, Records
from signoff.jobs.run import INCOMPLETE
from signoff.jobs.state_dir import claim, run_lock
from signoff.link.job_sink import JobSinkConfig
from tests.invoker import scenes
from tests.invoker.scenes import FakeRun, Scene, busy, settle


def scene(tmp_path: Path, **options: Any) -> Scene:
    return Scene(tmp_path, options)


def row(station: int = 7, **more: Any) -> dict[str, Any]:
    return {"key": station, "station": station, **more}


def test_rows_of_a_key_are_covered_by_one_run_and_answered_when_it_is_done(tmp_path: Path) -> None:
    one = scene(tmp_path)
    one.hand_on(row(), row(), row())
    invoker = one.invoker()
    settle(invoker)
    assert [run.given for run in one.runs] == [{"station": "7"}]
    assert one.answered() == []
    one.runs[0].end()
    settle(invoker)
    assert one.answered() == [0, 1, 2] and not one.refused()


def test_the_log_says_that_a_run_began_and_how_it_ended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "signoff.invoker")
    one = scene(tmp_path, retry={"attempts": 2, "initial_ms": 1000, "max_ms": 1000})
    one.hand_on(row(), row(), row())
    invoker = one.invoker()
    settle(invoker)
    one.steady.at += 70
    one.runs[0].end(1, "the table is gone")
    settle(invoker)
    one.steady.at += 7
    settle(invoker)
    one.runs[1].end()
    settle(invoker)
    one.hand_on(row(8))
    settle(invoker)
    begin(one.runs[2])
    one.steady.at += 5
    settle(invoker)
    said = [record.getMessage() for record in caplog.records]
    assert said[0] == 'sink "start": run report@station=7#1 began for 3 events'
    assert said[1].startswith('sink "start": run report@station=7#1 failed, next try in ')
    assert said[1].endswith(": the table is gone")
    assert said[2:] == [
        'sink "start": run report@station=7#1 began again (try 2) for 3 events',
        'sink "start": run report@station=7#1 done in 77 s',
        'sink "start": run report@station=8#1 began for 1 event',
    ], "the last one while it goes on"


def begin(run: FakeRun) -> None:
    """What the process of a run notes first."""
    job = scenes.load_job(run.file)
    claim(job)
    with Records(job.state) as records:
        wanted = asked(job, run.given)
        records.begin(wanted.key, run.asked_by, to_json(wanted.values), (None, None))


def test_a_row_that_comes_after_a_run_began_waits_for_the_next(tmp_path: Path) -> None:
    one = scene(tmp_path)
    one.hand_on(row())
    invoker = one.invoker()
    settle(invoker)
    one.hand_on(row())
    settle(invoker)
    assert len(one.runs) == 1  # one at a time for a key
    one.runs[0].end()
    settle(invoker)
    assert one.answered() == [0]
    assert len(one.runs) == 2
    one.runs[1].end()
    settle(invoker)
    assert one.answered() == [0, 1]


def test_a_burst_is_covered_by_one_run_per_cool_down(tmp_path: Path) -> None:
    one = scene(tmp_path, cool_down="15m")
    one.hand_on(*(row() for _ in range(10)))
    invoker = one.invoker()
    settle(invoker)
    one.runs[0].end()
    for _ in range(9):
        one.steady.at += 100
        one.hand_on(*(row() for _ in range(10)))
        if one.steady.at < 1900:
            settle(invoker)
            assert len(one.runs) == 1
    settle(invoker)
    assert len(one.runs) == 2
    one.runs[1].end()
    settle(invoker)
    assert len(one.answered()) == 100


@pytest.mark.parametrize("step", [-40_000.0, 40_000.0])
def test_the_cool_down_survives_a_kill_and_a_clock_that_is_set(tmp_path: Path, step: float) -> None:
    one = scene(tmp_path, cool_down="15m")
    one.hand_on(row())
    invoker = one.invoker()
    settle(invoker)
    one.runs[0].end()
    settle(invoker)
    one.time_of_day.at += step
    one.hand_on(row())
    again = one.invoker()
    one.steady.at += 899
    settle(again)
    assert len(one.runs) == 1
    one.steady.at += 1
    settle(again)
    assert len(one.runs) == 2


def test_after_a_restart_of_the_machine_the_time_of_day_says_how_long_ago_a_run_began(tmp_path: Path) -> None:
    one = scene(tmp_path, cool_down="15m")
    one.hand_on(row())
    invoker = one.invoker()
    settle(invoker)
    one.runs[0].end()
    settle(invoker)
    one.boot, one.steady.at = "second", 5.0
    one.time_of_day.at += 600
    one.hand_on(row())
    again = one.invoker()
    settle(again)
    assert len(one.runs) == 1
    one.steady.at += 300
    settle(again)
    assert len(one.runs) == 2


@pytest.mark.parametrize("moment", ["waiting", "running", "done"])
def test_the_same_row_again_shares_the_run_of_the_first(tmp_path: Path, moment: str) -> None:
    one = scene(tmp_path)
    one.hand_on(row(n="a"))
    invoker = one.invoker()
    if moment == "waiting":
        one.hand_on(row(n="a"))
    settle(invoker)
    if moment == "running":
        one.hand_on(row(n="a"))
        settle(invoker)
    one.runs[0].end()
    settle(invoker)
    if moment == "done":
        one.hand_on(row(n="a"))
        invoker = one.invoker()
        settle(invoker)
    assert one.answered() == [0, 1]
    assert len(one.runs) == 1


def test_the_same_row_is_a_new_one_after_a_time_and_after_a_run_that_failed(tmp_path: Path) -> None:
    one = scene(tmp_path, same_within="1h", retry={"attempts": 1})
    one.hand_on(row(n="a"))
    invoker = one.invoker()
    settle(invoker)
    one.runs[0].end(1, "no such table")
    settle(invoker)
    assert one.answered() == [0] and "no such table" in one.refused()[0]
    one.hand_on(row(n="a"))
    settle(invoker)
    assert len(one.runs) == 2
    one.runs[1].end()
    settle(invoker)
    one.steady.at += 3601
    one.hand_on(row(n="a"))
    settle(invoker)
    assert len(one.runs) == 3


def test_equal_rows_are_different_alerts_where_it_is_said_so(tmp_path: Path) -> None:
    one = scene(tmp_path, same_within=0)
    one.hand_on(row(n="a"))
    invoker = one.invoker()
    settle(invoker)
    one.hand_on(row(n="a"))
    again = one.invoker()  # the first row is in a run, whatever process has decided on that
    settle(again)
    one.runs[-1].end()
    settle(again)
    assert one.answered() == [0]
    one.runs[-1].end()
    settle(again)
    assert one.answered() == [0, 1]
    assert len({run.asked_by for run in one.runs}) == 2


def test_a_run_that_fails_is_tried_again_under_its_name_and_then_its_rows_are_refused(tmp_path: Path) -> None:
    one = scene(tmp_path)
    one.hand_on(row(), row())
    invoker = one.invoker()
    for tried in range(3):
        settle(invoker)
        assert len(one.runs) == tried + 1 and one.answered() == []
        one.runs[-1].end(1, "the disk is on fire")
        settle(invoker)
        one.steady.at += 10
    assert len({run.asked_by for run in one.runs}) == 1
    assert one.answered() == [0, 1]
    assert "failed 3 times: the disk is on fire" in one.refused()[0]
    settle(invoker)
    assert len(one.runs) == 3


def test_tries_are_counted_through_kills_of_the_invoker(tmp_path: Path) -> None:
    one = scene(tmp_path)
    one.hand_on(row())
    for _ in range(3):
        invoker = one.invoker()
        settle(invoker)
        one.runs[-1].end(1, "no")
        settle(invoker)
        one.steady.at += 10
    assert one.answered() == [0] and len(one.runs) == 3


def test_a_run_that_was_killed_is_not_one_that_failed(tmp_path: Path) -> None:
    one = scene(tmp_path)
    one.hand_on(row())
    invoker = one.invoker()
    for _ in range(10):
        settle(invoker)
        one.runs[-1].ended = -9
        settle(invoker)
        one.steady.at += 60
    settle(invoker)
    one.runs[-1].end()
    settle(invoker)
    assert one.answered() == [0] and not one.refused()
    assert len({run.asked_by for run in one.runs}) == 1


def test_a_kill_between_the_end_of_a_run_and_its_note_does_not_run_it_again(tmp_path: Path) -> None:
    one = scene(tmp_path)
    one.hand_on(row())
    settle(one.invoker())
    one.runs[0].end()
    again = one.invoker()
    settle(again)  # it starts it again under its name: what the records say is done is not done again
    assert one.runs[-1].asked_by == one.runs[0].asked_by
    one.runs[-1].end()
    settle(again)
    assert one.answered() == [0]


def test_a_kill_between_a_note_and_the_answer_leaves_no_row_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = scene(tmp_path)
    one.hand_on(row())
    invoker = one.invoker()
    settle(invoker)
    one.runs[0].end()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(invoker._link, "answer", _killed)
        settle(invoker)
    assert one.answered() == []
    settle(one.invoker())
    assert one.answered() == [0] and len(one.runs) == 1


def test_a_kill_between_a_decision_and_its_start_starts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = scene(tmp_path)
    one.hand_on(row())
    invoker = one.invoker()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(invoker, "_start", _killed)
        settle(invoker)
    assert not one.runs
    one.hand_on(row())
    again = one.invoker()
    settle(again)
    assert len(one.runs) == 1
    one.runs[0].end()
    settle(again)
    assert one.answered() == [0]  # the second came after the decision


def _killed(*_: object) -> None:
    raise KeyboardInterrupt


def test_no_more_runs_go_on_than_may_and_the_oldest_begins_first(tmp_path: Path) -> None:
    one = scene(tmp_path, at_most=2)
    one.hand_on(*(row(station) for station in range(5)))
    invoker = one.invoker()
    settle(invoker)
    assert [run.given["station"] for run in one.runs] == ["0", "1"]
    assert invoker.counts() == {"waiting": 3, "running": 2, "cooling": 0, "rows": 5}
    again = one.invoker()  # the two are the same, not two more
    settle(again)
    assert len({run.asked_by for run in one.runs}) == 2
    for run in one.runs[-2:]:
        run.end()
    settle(again)
    assert [run.given["station"] for run in one.runs[-2:]] == ["2", "3"]


def test_a_run_that_fails_keeps_no_other_key_waiting(tmp_path: Path) -> None:
    one = scene(tmp_path)
    one.hand_on(row(1), row(2))
    invoker = one.invoker()
    settle(invoker)
    one.runs[0].end(1, "no")
    settle(invoker)
    assert one.runs[-1].given == {"station": "2"}


def test_a_run_that_another_process_does_is_waited_for(tmp_path: Path) -> None:
    one = scene(tmp_path)
    one.hand_on(row())
    invoker = one.invoker()
    for _ in range(50):
        settle(invoker)
        busy(one.runs[-1])
        settle(invoker)
        one.steady.at += 1
    settle(invoker)
    one.runs[-1].end()
    settle(invoker)
    assert one.answered() == [0] and not one.refused()


def test_no_process_is_started_only_to_say_that_another_does_the_run(tmp_path: Path) -> None:
    one = scene(tmp_path)
    one.hand_on(row())
    graph = scenes.load_job(one.base / "job.yaml")
    claim(graph)
    invoker = one.invoker()
    with run_lock(graph.state, "report@station=7"):
        for _ in range(3):
            settle(invoker)
            one.steady.at += 1
        assert not one.runs
    settle(invoker)
    one.runs[0].end()
    settle(invoker)
    assert one.answered() == [0] and len(one.runs) == 1


def test_one_run_is_about_the_period_of_all_it_covers(tmp_path: Path) -> None:
    one = scene(tmp_path)
    one.hand_on(
        row(since="2026-01-01 10:00:00", upto="2026-01-01 11:00:00"),
        row(since="2026-01-01 08:00:00", upto="2026-01-01 09:00:00"),
    )
    settle(one.invoker())
    (run,) = one.runs
    assert run.given == {"station": "7", "since": "2026-01-01T08:00:00Z", "upto": "2026-01-01T11:00:00Z"}


def test_rows_of_a_key_that_ask_for_other_values_have_a_run_of_their_own(tmp_path: Path) -> None:
    one = scene(tmp_path)
    one.hand_on({"key": "a", "station": 1}, {"key": "a", "station": 2}, {"key": "a", "station": 1})
    invoker = one.invoker()
    settle(invoker)
    one.runs[0].end()
    settle(invoker)
    assert one.answered() == [0, 2]
    assert [run.given["station"] for run in one.runs] == ["1", "2"]


def test_a_row_whose_values_do_not_fit_is_refused_alone(tmp_path: Path) -> None:
    one = scene(tmp_path)
    one.hand_on({"key": 1, "station": "one"}, {"key": 1, "station": 1}, {"key": 1, "station": None})
    invoker = one.invoker()
    settle(invoker)
    assert one.answered() == [0, 2]
    assert one.refused() == {
        0: 'parameter "station": "one" is no int',
        2: 'the parameter "station" (int) of job "report" is null',
    }
    assert len(one.runs) == 1


def test_stopped_it_begins_nothing_and_ends_what_goes_on(tmp_path: Path) -> None:
    one = scene(tmp_path)
    one.hand_on(row(1), row(2))
    invoker = one.invoker()
    settle(invoker)
    invoker.stopping = True
    one.runs[0].end()
    settle(invoker)
    assert len(one.runs) == 1 and one.answered() == [0]
    invoker.close()
    settle(again := one.invoker())
    assert one.runs[-1].given == {"station": "2"}
    again.close()
    assert one.runs[-1].ended == -15


def test_a_job_that_cannot_be_read_keeps_rows_waiting(tmp_path: Path) -> None:
    one = scene(tmp_path)
    file = one.base / "job.yaml"
    text = file.read_text()
    file.write_text("name: [")
    one.hand_on(row())
    invoker = one.invoker()
    settle(invoker)
    assert not one.runs and one.answered() == []
    file.write_text(text)
    settle(invoker)
    assert len(one.runs) == 1


def test_what_is_forgotten_is_no_row_that_waits(tmp_path: Path) -> None:
    one = scene(tmp_path, same_within="10s", cool_down="10s", at_most=2)
    invoker = one.invoker()
    for number in range(5):
        one.hand_on(row(number))
        settle(invoker)
        if number:
            one.runs[-1].end()
        one.steady.at += 60
        settle(invoker)
    one.runs[0].end()
    settle(invoker)
    assert len(one.answered()) == 5
    assert isinstance(one.runs[0], FakeRun)


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job has a parameter of text as well."""
    parameters = {**scenes.JOB["parameters"], "name": {"type": "string", "default": "none"}}
    monkeypatch.setitem(scenes.JOB, "parameters", parameters)


@pytest.mark.usefixtures("named")
@pytest.mark.parametrize(("text", "why"), [("a\0b", "NUL"), ("ö" * 70_000, "more than 100,000 bytes")])
def test_a_value_that_no_process_takes_is_refused_and_keeps_nobody_waiting(
    tmp_path: Path, text: str, why: str
) -> None:
    one = scene(tmp_path, parameters={"station": "s", "name": "m"})
    one.hand_on(row(1, name=text), row(2, name="fine"))
    settle(one.invoker())
    assert [run.given for run in one.runs] == [{"station": "2", "name": "fine"}]
    assert one.answered() == [0] and 'parameter "name"' in one.refused()[0] and why in one.refused()[0]


@pytest.mark.parametrize("error", [ValueError("embedded null byte"), OSError(errno.E2BIG, "too long")])
def test_a_run_whose_process_cannot_be_started_is_tried_and_then_refused(
    tmp_path: Path, error: Exception
) -> None:
    one = scene(tmp_path, at_most=2)
    one.hand_on(row(1), row(2))
    invoker, start = one.invoker(), one._start

    def fail(file: Path, given: Mapping[str, str], asked_by: str) -> FakeRun:
        if given["station"] == "1":
            raise error
        return start(file, given, asked_by)

    invoker.start = fail
    for _ in range(3):
        settle(invoker)
        one.steady.at += 10
    assert [run.given["station"] for run in one.runs] == ["2"]
    assert one.answered() == [0] and "failed 3 times: its process cannot be started" in one.refused()[0]


def test_too_many_processes_for_a_moment_is_no_try_that_failed(tmp_path: Path) -> None:
    one = scene(tmp_path)
    one.hand_on(row(1))
    invoker, start, full = one.invoker(), one._start, iter(range(5))

    def fail(file: Path, given: Mapping[str, str], asked_by: str) -> FakeRun:
        if next(full, None) is not None:
            raise OSError(errno.EAGAIN, "no more processes")
        return start(file, given, asked_by)

    invoker.start = fail
    for _ in range(6):
        settle(invoker)
        one.steady.at += 15
    one.runs[0].end()
    settle(invoker)
    assert one.answered() == [0] and not one.refused()


def test_a_row_without_a_period_is_not_covered_by_a_run_about_one(tmp_path: Path) -> None:
    one = scene(tmp_path)
    whole, part = row(since=None, upto=None), row(since="2026-01-01 10:00:00", upto="2026-01-02 00:00:00")
    one.hand_on(part, whole)
    one.hand_on({**row(8), "since": None, "upto": None}, {**part, "key": 8, "station": 8})
    invoker = one.invoker()
    settle(invoker)
    bounded = {"since": "2026-01-01T10:00:00Z", "upto": "2026-01-02T00:00:00Z"}
    for _ in range(3):
        one.runs[-1].end()
        settle(invoker)
    assert [run.given for run in one.runs] == [
        {"station": "7", **bounded}, {"station": "7"}, {"station": "8"}, {"station": "8", **bounded},
    ]  # fmt: skip
    assert one.answered() == [0, 1, 2]


def test_a_default_of_a_period_counts_as_its_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    since = {"type": "timestamp", "default": "2026-01-01T00:00:00Z"}
    monkeypatch.setitem(scenes.JOB, "parameters", {**scenes.JOB["parameters"], "since": since})
    one = scene(tmp_path)
    upto = "2026-01-03 00:00:00"
    one.hand_on(row(since="2026-01-02 00:00:00", upto=upto), row(since=None, upto=upto))
    settle(one.invoker())
    assert [run.given["since"] for run in one.runs] == ["2026-01-01T00:00:00Z"]


def _began(one: Scene, state: str, **more: Any) -> None:
    """Leave in the records what the last run had done so far."""
    run = one.runs[-1]
    graph = scenes.load_job(run.file)
    claim(graph)
    wanted = asked(graph, run.given)
    with Records(graph.state) as records:
        record = records.begin(wanted.key, run.asked_by, to_json(wanted.values), (None, None))
        records.change(record, state=state, **more)


@pytest.mark.parametrize("code", [0, 2, 3])
def test_a_run_that_has_to_wait_is_no_try_that_failed(tmp_path: Path, code: int) -> None:
    """0: done, but in a state directory that the job does not have any more; 2: the job's file is wrong for
    the moment; 3: its rows wait for a sink."""
    one = scene(tmp_path, retry={"attempts": 1})
    one.hand_on(row())
    invoker = one.invoker()
    for _ in range(3):
        settle(invoker)
        if code == 3:
            _began(one, "delivering", reason="sink out has not finished")
        one.runs[-1].ended = code
        settle(invoker)
        one.steady.at += 600
    settle(invoker)
    assert len(one.runs) == 4 and len({run.asked_by for run in one.runs}) == 1
    assert one.answered() == []
    one.runs[-1].end()
    settle(invoker)
    assert one.answered() == [0] and not one.refused()


@pytest.mark.parametrize("when", ["while it waits", "while it goes on"])
def test_a_run_that_was_cancelled_is_waited_for_no_longer(tmp_path: Path, when: str) -> None:
    one = scene(tmp_path)
    one.hand_on(row())
    invoker = one.invoker()
    settle(invoker)
    if when == "while it waits":
        _began(one, "delivering", reason="sink out has not finished")
        one.runs[-1].ended = 3
        settle(invoker)
        assert not one.refused()
    graph = scenes.load_job(one.base / "job.yaml")
    with Records(graph.state) as records:
        if when == "while it goes on":
            _began(one, "computing")
        (record,) = records.newest()
        records.change(record, state="cancelled", reason="cancelled: it will never be")
    if when == "while it goes on":
        one.runs[-1].ended = 1
    else:
        one.steady.at += 3  # before the time at which it would be asked for again
    settle(invoker)
    assert len(one.runs) == 1 and "cancelled: it will never be" in one.refused()[0]


def test_a_run_whose_rows_were_refused_has_failed(tmp_path: Path) -> None:
    one = scene(tmp_path, retry={"attempts": 1})
    one.hand_on(row())
    invoker = one.invoker()
    settle(invoker)
    _began(one, "failed", reason="1 row was refused")
    one.runs[-1].ended = 3
    settle(invoker)
    assert "1 row was refused" in one.refused()[0]


def test_an_equal_row_has_a_run_of_its_own_where_the_sink_asks_for_something_else(
    tmp_path: Path,
) -> None:
    one = scene(tmp_path)
    for station, job in ((7, "job.yaml"), (99, "job.yaml"), (99, "other.yaml"), (99, "other.yaml")):
        (one.base / "other.yaml").write_text((one.base / "job.yaml").read_text())
        one.config = one.config.model_copy(update={"job": job})
        one.hand_on({"key": "a", "station": station, "n": "a"})
        invoker = one.invoker()
        settle(invoker)
        if one.runs[-1].ended is None:
            one.runs[-1].end()
        settle(invoker)
        invoker.close()
    did = [(run.file.name, run.given["station"]) for run in one.runs]
    assert did == [("job.yaml", "7"), ("job.yaml", "99"), ("other.yaml", "99")]
    assert one.answered() == [0, 1, 2, 3]


def test_a_clock_that_was_set_back_does_not_hide_that_a_run_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = scene(tmp_path, retry={"attempts": 2, "initial_ms": 1000})
    one.hand_on(row())
    invoker = one.invoker()
    settle(invoker)
    _began(one, "failed", reason="1 row was refused", outputs={"t": Output(1, "{}", (), 0)})
    one.runs[-1].ended = 3
    settle(invoker)
    one.steady.at += 10
    settle(invoker)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 3600)
    _began(one, "done")
    one.runs[-1].ended = 0
    settle(invoker)
    assert one.answered() == [0] and not one.refused()


@pytest.mark.usefixtures("named")
@pytest.mark.parametrize("text", ["../../elsewhere", "a/b", "..", "a\\b", "", "s" * 300, "ä" * 101])
def test_a_value_leads_no_path_of_the_job_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    out = {"type": "files", "input": "t", "path": "./out/${name}"}
    monkeypatch.setitem(scenes.JOB, "sinks", {"out": out})
    one = scene(tmp_path, parameters={"station": "s", "name": "m"})
    one.hand_on(row(1, name=text), row(2, name="2021-05-01.a"))
    settle(one.invoker())
    assert [run.given["station"] for run in one.runs] == ["2"]
    assert 'parameter "name" stands in a path' in one.refused()[0]
    given = asked(scenes.load_job(one.base / "job.yaml"), {"station": 1, "name": text})
    assert given.values["name"] == text, "a person may write where they like"


@pytest.mark.parametrize("mended", [False, True])
def test_a_value_with_which_the_file_is_no_job_is_refused_and_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mended: bool
) -> None:
    """It is right with any sample; a run with this value ends with 2, each time, before it is recorded."""
    most = "null_value" if mended else "max_file_rows"
    monkeypatch.setitem(scenes.JOB, "sinks", {"out": {**scenes.JOB["sinks"]["out"], most: "${most}"}})
    declared = {"type": "int", "default": 5}
    monkeypatch.setitem(scenes.JOB, "parameters", {**scenes.JOB["parameters"], "most": declared})
    one = scene(tmp_path, at_most=2, parameters={"station": "s", "most": "m"})
    one.hand_on(row(1, most=0), row(2, most=3))
    invoker = one.invoker()
    settle(invoker)
    one.runs[0].ended = 2
    settle(invoker)
    if mended:  # the file was wrong when the run began, and is right by now
        assert not one.refused()
        return
    assert "the job is wrong for these values" in one.refused()[0]
    assert "max_file_rows" in one.refused()[0]
    one.runs[1].end()
    settle(invoker)
    assert one.answered() == [0, 1] and len(one.runs) == 2


@pytest.mark.parametrize("wrong", ["another name", "another type", "one more"])
def test_a_job_that_does_not_fit_its_sink_for_a_while_is_no_fault_of_a_row(
    tmp_path: Path, wrong: str
) -> None:
    """Somebody edits its parameters while the pipeline runs."""
    one = scene(tmp_path)
    text = (tmp_path / "job.yaml").read_text()
    fields = yaml.safe_load(text)
    declared = fields["parameters"]
    job = scenes.load_job(tmp_path / "job.yaml")
    one.config = cast(JobSinkConfig, one.config.of_job(job.settings.parameters))
    if wrong == "another name":
        declared["place"] = declared.pop("station")
        fields["key"] = ["place"]
    elif wrong == "another type":
        declared["station"] = "date"
    else:
        declared["more"] = "int"
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(fields))
    invoker = one.invoker()
    rows = one.hand_on({"key": "a", "station": 7})
    settle(invoker)
    assert not one.runs and not one.answered()
    (tmp_path / "job.yaml").write_text(text)
    one.steady.at += 10
    settle(invoker)
    one.runs[0].end()
    settle(invoker)
    assert one.answered() == list(rows) and not one.refused()


def test_a_run_whose_tables_lack_its_data_waits_and_settles_nothing(tmp_path: Path) -> None:
    one = scene(tmp_path, retry={"attempts": 1}, complete_within="1h")
    one.hand_on(row())
    invoker = one.invoker()
    for _ in range(3):
        settle(invoker)
        one.runs[-1].end(INCOMPLETE, '"failures" is complete to 06:00, and is needed to 06:10')
        settle(invoker)
        assert one.answered() == []
        one.steady.at += 600
    invoker = one.invoker()
    settle(invoker)
    assert len(one.runs) == 4 and len({run.asked_by for run in one.runs}) == 1
    one.runs[-1].end()
    settle(invoker)
    assert one.answered() == [0] and not one.refused()


def test_a_run_whose_tables_lack_its_data_for_too_long_has_failed_whoever_was_killed(tmp_path: Path) -> None:
    one = scene(tmp_path, complete_within="1h")
    one.hand_on(row())
    settle(one.invoker())
    one.steady.at += 3_600
    invoker = one.invoker()
    settle(invoker)
    one.runs[-1].end(INCOMPLETE, '"failures" is empty, and is needed to 06:10')
    settle(invoker)
    assert "failed once: " in one.refused()[0] and "is needed to 06:10" in one.refused()[0]


@pytest.mark.parametrize("code", [1, INCOMPLETE])
def test_a_run_that_is_between_its_tries_can_be_cancelled(tmp_path: Path, code: int) -> None:
    one = scene(tmp_path)
    one.hand_on(row())
    invoker = one.invoker()
    settle(invoker)
    one.runs[0].end(code, "not yet")
    settle(invoker)
    graph = scenes.load_job(tmp_path / "job.yaml")
    with Records(graph.state, readonly=True) as records:
        (record,) = records.newest()
    assert not one.answered() and cancel(graph, record, lambda: True).state == "cancelled"
    one.steady.at += 5  # the next try is later
    settle(invoker)
    assert one.answered() == [0] and len(one.runs) == 1 and "cancelled" in one.refused()[0]
    with pytest.raises(StateError, match="is cancelled"):
        cancel(graph, record, lambda: True)


def test_a_run_needs_its_tables_as_far_as_all_that_it_covers_do(tmp_path: Path) -> None:
    one = scene(tmp_path)
    parameters = {**scenes.JOB["parameters"], "needed": {"type": "timestamp", "default": None}}
    table = {**scenes.JOB["sources"]["t"], "complete_to": "max(x)", "needed_to": "needed"}
    job = {**scenes.JOB, "state": "./job_state", "parameters": parameters, "sources": {"t": table}}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job, sort_keys=False))
    one.hand_on(*(row(needed=f"2026-01-01 {moment}:00") for moment in ("06:10", "06:40", "06:20")))
    settle(one.invoker())
    assert [run.given["needed"] for run in one.runs] == ["2026-01-01T06:40:00Z"]


def test_a_row_that_does_not_say_how_far_its_period_goes_keeps_no_other_waiting(tmp_path: Path) -> None:
    """The end of the period is also up to where the table is needed."""
    one = scene(tmp_path)
    table = {**scenes.JOB["sources"]["t"], "complete_to": "max(x)", "needed_to": "upto"}
    job = {**scenes.JOB, "state": "./job_state", "sources": {"t": table}}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job, sort_keys=False))
    since = "2026-01-01 00:00:00"
    open_end, until = row(since=since, upto=None), row(since=since, upto="2026-01-01 06:00:00")
    one.hand_on(open_end, until, {**until, "upto": "2026-01-01 07:00:00"}, open_end, {**until, "key": 8})
    invoker = one.invoker()
    settle(invoker)
    for _ in range(3):
        one.runs[-1].end()
        settle(invoker)
    upto = [(run.given["station"], run.given.get("upto")) for run in one.runs]
    assert upto == [("7", None), ("7", "2026-01-01T07:00:00Z"), ("7", "2026-01-01T06:00:00Z")]
    assert one.answered() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("change", ["a parameter less", "a parameter more"])
def test_a_run_that_no_job_takes_any_more_is_given_up(tmp_path: Path, change: str) -> None:
    """Sink and job were edited together, while a run that was decided on before had not ended."""
    one = scene(tmp_path, parameters={"station": "s", "since": "t"})
    one.hand_on(row(since="2026-01-01 00:00:00"))
    invoker = one.invoker()
    settle(invoker)
    invoker.close()
    less = change == "a parameter less"
    declared: dict[str, Any] = {"station": "int"} if less else {**scenes.JOB["parameters"], "area": "string"}
    job = {**scenes.JOB, "state": "./job_state", "parameters": declared, "period": None}
    given = {"station": "s"} if less else {"station": "s", "since": "t", "area": "a"}
    one = scene(tmp_path, parameters=given)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job, sort_keys=False))
    types = scenes.load_job(tmp_path / "job.yaml").settings.parameters
    one.config = cast(JobSinkConfig, one.config.of_job(types))
    one.events = 1
    invoker = one.invoker()
    settle(invoker)
    one.runs[-1].ended = 2  # it says that the parameter is missing, or is none
    settle(invoker)
    reason = 'there is no parameter "since"' if less else 'the parameter "area" (string) needs a value'
    assert reason in one.refused()[0]
