"""Events that start runs of a job: how many runs, which data they see, and when the event is acknowledged."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from pyroaring import BitMap64

from signoff.engine.spark_check import check
from signoff.invoker.notes import InvokerNotes
from signoff.link.job_sink import invoker_place
from signoff.log import LogReader
from tests.promises.product import HTTP, Inline, books
from tests.promises.test_settling import assert_waits, code

pytestmark = pytest.mark.spark

Make = Callable[..., Inline]
PATIENT = HTTP | {"acknowledge_within": "10m"}
PARSE = {"type": "parse_json", "input": "incoming", "schema": "station INT, at TIMESTAMP, n INT"}
JOB: dict[str, Any] = {
    "name": "report",
    "state": "./job_state",
    "spark": {"master": "local[1]", "config": {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}},
    "parameters": {"station": "int", "upto": {"type": "timestamp", "default": "2030-01-01"}},
    "key": ["station"],
    "sources": {
        "seen": {
            "type": "table", "path": "./seen.db", "table": "seen", "where": "station = :station",
            "complete_to": "max(at)",
        }
    },
    "transforms": {"counted": {"type": "sql", "input": "seen", "query": "SELECT count(*) AS seen FROM seen"}},
    "sinks": {
        "report": {
            "type": "report", "input": "counted", "path": "./reports/${station}", "formats": ["json"],
            "title": "Station ${station}", "content": [{"table": "counted"}],
        }
    },
}  # fmt: skip
STARTS = {
    "type": "job", "input": "parsed", "job": "./job.yaml", "key": "station",
    "parameters": {"station": "station", "upto": "at"},
    "retry": {"initial_ms": 10, "max_ms": 100, "attempts": 2},
}  # fmt: skip


def pipeline(source: dict[str, Any] = PATIENT, **sink: Any) -> dict[str, Any]:
    return {
        "sources": {"incoming": source},
        "transforms": {"parsed": PARSE},
        "sinks": {"start": {**STARTS, **sink}},
    }  # fmt: skip


def write_job(directory: Path, **changes: Any) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "job.yaml").write_text(yaml.safe_dump({**JOB, **changes}, sort_keys=False))


def see(directory: Path, *stations: int) -> None:
    """Rows that the job reads."""
    directory.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(directory / "seen.db")) as db:
        db.execute("CREATE TABLE IF NOT EXISTS seen (station INTEGER, at TEXT)")
        db.executemany("INSERT INTO seen VALUES (?, '2026-01-01T00:00:00Z')", [(each,) for each in stations])
        db.commit()


def report(product: Inline, station: int) -> int | None:
    try:
        found = json.loads((product.directory / f"reports/{station}.json").read_bytes())
    except FileNotFoundError:
        return None
    return int(found["inputs"]["counted"]["rows"][0]["seen"])


def runs(product: Inline) -> list[dict[str, Any]]:
    done = product.command("jobs", "list", str(product.directory / "job.yaml"), "--json")
    found: list[dict[str, Any]] = json.loads(done.answer)
    return found


def of_job(product: Inline) -> list[psutil.Process]:
    """The processes of runs that go on."""
    file = str(product.directory / "job.yaml")
    own = psutil.Process().children(recursive=True)
    return [each for each in own if "jobs" in (line := _line(each)) and file in line]


def _line(process: psutil.Process) -> list[str]:
    with suppress(psutil.Error):
        return list(process.cmdline())
    return []


def kill(*processes: psutil.Process) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, 30)


@pytest.mark.case(47, 48)
def test_an_event_is_acknowledged_when_the_report_it_asked_for_is_there(inline: Make, tmp_path: Path) -> None:
    write_job(tmp_path)
    see(tmp_path, 7, 7, 8)
    product = inline(**pipeline())
    running = product.start()
    answer = product.post([{"station": 7, "n": 1}, {"station": 7, "n": 2}, {"station": 7, "n": 1}])
    running.wait_for(lambda: product.status()["jobs"]["start"]["running"] == 1)
    if report(product, 7) is None:
        assert_waits(answer)
        why = product.explain("incoming/1")
        assert "start waits for a run that covers it" in why["why"]
        (asked,) = why["asked_for"]
        assert asked["text"].startswith('waits for a run of ./job.yaml for ["7"], asked for by 3 events')
    assert code(answer) == 200
    assert report(product, 7) == 2
    assert product.account() == books(delivered=3)
    (run,) = runs(product)
    assert run["state"] == "done" and run["complete_to"] == "2026-01-01T00:00:00Z"
    assert run["asked_by"].startswith("tested/start ")
    assert run["asked_by"].endswith(": 3 events, the first incoming/0")
    (asked,) = product.explain("incoming/1")["asked_for"]
    assert asked["text"].startswith('settled by run report@station=7#1 of ./job.yaml for ["7"]')
    status = product.status()["jobs"]["start"]
    assert (status["runs_done"], status["runs_failed"]) == (1, 0)

    # The same again is no new event; another one has a run that sees what was seen since.
    see(tmp_path, 7)
    assert code(product.post({"station": 7, "n": 2})) == 200
    assert report(product, 7) == 2
    assert code(product.post({"station": 7, "n": 3})) == 200
    assert report(product, 7) == 3
    assert [run["run"] for run in runs(product)] == ["report@station=7#2", "report@station=7#1"]
    assert product.account() == books(delivered=5)


@pytest.mark.case(48)
def test_a_run_that_fails_is_tried_again_and_then_its_events_meet_on_failure(
    inline: Make, tmp_path: Path
) -> None:
    write_job(tmp_path)  # there is no table
    product = inline(**pipeline(on_failure="refuse"))
    product.start()
    assert code(product.post([{"station": 7, "n": 1}, {"station": 7, "n": 2}])) in (422, 503)
    assert product.account() == books(refused=2)
    (run,) = runs(product)
    assert (run["state"], run["tries"]) == ("failed", 2)
    (asked,) = product.explain("incoming/0")["asked_for"]
    assert 'given up with run report@station=7#1 of ./job.yaml for ["7"]' in asked["text"]
    assert "failed 2 times" in asked["text"] and "seen.db" in asked["text"]
    assert "of ./job.yaml failed 2 times" in product.explain("incoming/0")["why"]


@pytest.mark.case(47)
@pytest.mark.crash
def test_a_kill_between_a_report_and_its_record_leaves_one_run_and_one_report(
    inline: Make, tmp_path: Path
) -> None:
    """A second report that cannot be written yet holds the run at just that moment."""
    held = {**JOB["sinks"]["report"], "path": "./held/${station}"}
    write_job(tmp_path, sinks={**JOB["sinks"], "held": held})
    see(tmp_path, 7, 7)
    in_the_way = tmp_path / "held/7.json/in the way"
    in_the_way.mkdir(parents=True)
    product = inline(**pipeline())
    running = product.start(drain_s=0.1)
    answer = product.post([{"station": 7, "n": 1}, {"station": 7, "n": 1}])
    running.wait_for(lambda: report(product, 7) == 2)
    see(tmp_path, 7)  # no run that goes on may see it: its rows are delivered already
    kill(*of_job(product))
    running.wait_for(lambda: of_job(product))
    invoker = running.run.invoker_pid
    assert invoker is not None
    kill(psutil.Process(invoker))
    running.wait_for(lambda: running.run.invoker_pid not in (None, invoker) and of_job(product))
    assert_waits(answer)
    in_the_way.rmdir()
    in_the_way.parent.rmdir()
    assert code(answer) == 200
    assert [(run["run"], run["state"]) for run in runs(product)] == [("report@station=7#1", "done")]
    assert report(product, 7) == 2
    assert not of_job(product)
    assert product.account() == books(delivered=2)


@pytest.mark.case(49)
def test_a_burst_is_covered_by_a_run_per_cool_down_each_of_which_began_after_its_events(
    inline: Make, tmp_path: Path
) -> None:
    cool_down = 20.0
    write_job(tmp_path)
    see(tmp_path, 7)
    product = inline(**pipeline(cool_down=cool_down))
    product.start()
    began = time.monotonic()
    answers = [product.post([{"station": 7, "n": 10 * post + n} for n in range(10)]) for post in range(10)]
    assert {code(answer) for answer in answers} == {200}
    took = time.monotonic() - began
    found = runs(product)
    assert len(found) <= 2 + took / cool_down
    log = LogReader(product.state / "log" / "incoming")
    notes = InvokerNotes(invoker_place(product.state, "start").notes, readonly=True)
    covered = BitMap64()
    for number, _, at in notes.beginnings():
        run = notes.get(number)
        assert run is not None
        for event in log.lookup(run.origins["incoming"]).values():
            assert event["received_at"].timestamp() <= at.at
        assert not covered & run.origins["incoming"]
        covered |= run.origins["incoming"]
    notes.close()
    assert len(covered) == 100
    assert product.account() == books(delivered=100)


def test_expressions_that_do_not_fit_are_found_where_they_stand(
    inline: Make, tmp_path: Path, spark: Any
) -> None:
    write_job(tmp_path)
    wrong = {"station": "staton", "upto": "station"}
    product = inline(**pipeline(parameters=wrong, key=["station", "date(att)"]))
    found = [str(problem) for problem in check(product.graph(), spark)]
    assert len(found) == 1 and 'there is no column "att"' in found[0]
    text = product.file.read_text()
    product.file.write_text(text.replace("date(att)", "date(at)"))
    (problem,) = check(product.graph(), spark)
    assert 'there is no column "staton"; did you mean "station"?' in str(problem)
    assert text.splitlines()[problem.line - 1].strip() == "station: staton"
    product.file.write_text(text.replace("date(att)", "date(at)").replace("staton", "station"))
    assert check(product.graph(), spark) == [], "whether a value fits is known when a row brings it"


def test_a_row_whose_value_does_not_fit_is_a_dead_letter_and_the_others_go_on(
    inline: Make, tmp_path: Path
) -> None:
    write_job(tmp_path)
    see(tmp_path, 7)
    product = inline(**pipeline(parameters={"station": "IF(n = 2, 'seven', '7')"}))
    product.start()
    assert code(product.post([{"station": 7, "n": 1}, {"station": 7, "n": 2}])) == 200
    assert product.account() == books(delivered=1, dead_lettered=1)
    (letter,) = product.dead_letters()
    assert letter["stage"] == "start" and "'seven'" in letter["reason"]
