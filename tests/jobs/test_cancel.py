"""A run that cannot be done is given up: the others go on, and its rows are accounted for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from signoff.cli import app
from signoff.jobs import deliver, outputs
from signoff.jobs.state_dir import run_lock
from tests.jobs.scenes import JOB, job_run, lines, records, stored, write_job, write_results

pytestmark = pytest.mark.spark
RUN = "failures@day=2021-05-02"


def command(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.output


def test_a_run_that_wedges_all_others_is_cancelled(tmp_path: Path, spark: SparkSession) -> None:
    """Its directory is a file: that might be mended, so it waits."""
    write_results(tmp_path / "results.db")
    file = write_job(tmp_path)
    (tmp_path / "out-2021-05-02").touch()
    asked = {"asked_by": "alerts/start 1", "patience_s": 0.5}
    assert job_run(file, spark, {"day": "2021-05-02"}, **asked).execute() == 3
    assert job_run(file, spark, {"day": "2021-05-03"}, patience_s=0.5).execute() == 3
    assert not (tmp_path / "out-2021-05-03").exists()
    with run_lock(tmp_path / "state", RUN):
        code, said = command("jobs", "cancel", str(file), RUN, "--yes", "--wait-seconds", "0")
    assert code != 0 and {record.state for record in records(tmp_path)} == {"computed", "delivering"}

    code, said = command("jobs", "cancel", str(file), RUN, "--yes")
    assert code == 0 and f"{RUN}#1: cancelled" in said and "5 refused" in said
    assert job_run(file, spark, {"day": "2021-05-03"}).execute() == 0
    assert len(lines(tmp_path / "out-2021-05-03")) == 5
    code, said = command("audit", str(file), "--json")
    assert code == 0, said
    account = json.loads(said)["sources"]["by_station"]
    assert (account["refused"], account["delivered"], account["in_flight"]) == (5, 5, 0)
    code, said = command("jobs", "cancel", str(file), RUN, "--yes")
    assert code != 0 and {record.state for record in records(tmp_path)} == {"cancelled", "done"}

    # Who has asked for it once is told, and gets no other; a person who asks anew gets one.
    again = job_run(file, spark, {"day": "2021-05-02"}, **asked)
    assert again.execute() == 1 and again.record is not None and again.record.id == f"{RUN}#1"
    (tmp_path / "out-2021-05-02").unlink()
    assert job_run(file, spark, {"day": "2021-05-02"}).execute() == 0
    assert len(lines(tmp_path / "out-2021-05-02")) == 5
    assert stored(tmp_path / "out.db") == [(3, 12), (3, 12), (4, 16), (4, 16), (5, 20), (5, 20)]


@pytest.mark.parametrize("state", ["computed", "appending"])
def test_what_a_kill_has_left_is_cancelled(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    """Of rows of which a part is in the log the others have no number: the next run gets these."""
    write_results(tmp_path / "results.db")
    file = write_job(tmp_path)

    def killed(log: Path, output: Any, parts: Path) -> None:
        if state == "appending":
            written = outputs.LogWriter(log, outputs.LogSettings())
            events = next(outputs.events_in([parts / name for name in output.parts]))
            written.append(outputs._received_now(events.slice(0, 2)))
            written.close()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        name = "append" if state == "appending" else "next_number"
        patch.setattr(deliver, name, killed if state == "appending" else lambda _: killed(*[None] * 3))
        with pytest.raises(KeyboardInterrupt):
            job_run(file, spark, {"day": "2021-05-02"}).execute()
    assert [record.state for record in records(tmp_path)] == [state]
    assert command("jobs", "cancel", str(file), f"{RUN}#1", "--yes")[0] == 0
    (record,) = records(tmp_path)
    assert record.state == "cancelled" and record.ranges == ({"by_station": (0, 2)} if record.ranges else {})
    assert not list((tmp_path / "state" / "jobs").glob("*/parts"))
    assert job_run(file, spark, {"day": "2021-05-02"}).execute() == 0
    assert [row["stationId"] for row in lines(tmp_path / "out-2021-05-02")] == [1, 2, 3, 4, 5]
    assert stored(tmp_path / "out.db") == [(3, 12), (4, 16), (5, 20)]
    last = records(tmp_path)[0]
    assert last.outcome["delivered"] == 5 and command("audit", str(file))[0] == 0
    assert JOB["name"] in last.id and last.edition == 2
