"""A job whose file is changed while a run of it is not done: no row is forgotten. Without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from signoff.engine.batch.interrupts import Interrupts
from signoff.jobs.deliver import JobDelivery, StillOwed, outcome_of
from signoff.jobs.outputs import second_half
from signoff.jobs.parameters import asked, to_json
from signoff.jobs.records import Output, Record, Records
from signoff.jobs.run import JobRun, load_job
from signoff.jobs.state_dir import claim
from signoff.ledger import Ledger, Outcome, Resolution
from signoff.pipeline.graph import Graph
from tests.jobs.scenes import JOB, write_job
from tests.ledger.attempts import attempt

NO_SPARK = cast("SparkSession", None)
QUERY, DAY_FILE = JOB["transforms"]["by_station"], JOB["sinks"]["day_file"]


def left(directory: Path, state: str, *names: str) -> tuple[Graph, Record]:
    """What a kill has left of a run: five rows of each of these queries."""
    graph = load_job(write_job(directory))
    claim(graph)
    first = None if state == "computed" else 0
    outputs = {name: Output(5, "{}", ("part",), first) for name in names}
    with Records(graph.state) as records:
        wanted = asked(graph, {"day": "2021-05-02"})
        begun = records.begin(wanted.key, "person", to_json(wanted.values), (None, None))
        return graph, records.change(begun, state=state, outputs=outputs)


def require_same(directory: Path, record: Record, **changes: Any) -> None:
    graph = load_job(write_job(directory, **changes))
    with Records(graph.state) as records:
        JobDelivery(NO_SPARK, records, Interrupts())._require_same(second_half(graph), record)


@pytest.mark.parametrize("state", ["appending", "delivering"])
def test_rows_of_a_query_that_is_gone_keep_their_run_from_being_done(tmp_path: Path, state: str) -> None:
    """No engine looks at their log any more."""
    graph, record = left(tmp_path, state, "by_station", "gone")
    with pytest.raises(StillOwed, match='5 rows of "gone" are not delivered'):
        require_same(tmp_path, record)
    with Ledger(graph.state / "ledger.db") as ledger:
        attempt(ledger, 0, 3, source="gone", delivered=[0, 1, 2])
        with pytest.raises(StillOwed, match='2 rows of "gone"'):
            require_same(tmp_path, record)
        attempt(ledger, 3, 5, source="gone", delivered=[3], dropped=[4])
    require_same(tmp_path, record)


def test_rows_of_a_run_are_not_called_all_when_the_job_has_another_query_now(tmp_path: Path) -> None:
    _, record = left(tmp_path, "delivering", "by_station")
    more = {"transforms": {**JOB["transforms"], "other": QUERY}}
    more["sinks"] = {**JOB["sinks"], "other_file": {**DAY_FILE, "input": "other", "path": "./other"}}
    with pytest.raises(StillOwed, match='when "other" was not in the job'):
        require_same(tmp_path, record, **more)


def test_a_run_of_which_no_row_has_a_number_is_computed_anew_when_its_queries_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    monkeypatch.setattr(JobRun, "_compute", lambda *_: done.append("compute"))
    monkeypatch.setattr(JobRun, "_deliver", lambda *_, **__: done.append("deliver"))
    for names, wanted in ((("by_station",), ["deliver"]), (("gone",), ["compute", "deliver"])):
        graph, _ = left(tmp_path, "computed", *names)
        run = JobRun(
            tmp_path / "job.yaml", asked(graph, {"day": "2021-05-02"}), spark=cast("SparkSession", object())
        )
        assert run.execute() == 0 and done == wanted
        done.clear()


def test_what_comes_first_and_is_owed_has_the_exit_code_of_what_is_owed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of an earlier try, with other values, wait for a sink: this run has neither begun nor failed."""
    graph, record = left(tmp_path, "delivering", "by_station")

    def owed(*_: object) -> Record:
        raise StillOwed("the sink is down")

    monkeypatch.setattr(JobDelivery, "deliver", owed)
    wanted = asked(graph, {"day": "2021-05-02", "least": 4})
    run = JobRun(tmp_path / "job.yaml", wanted, spark=cast("SparkSession", object()))
    assert run.execute() == 3
    assert run.record is not None and run.record.id == record.id
    assert run.record.reason == f"{record.id} comes first: the sink is down"


def test_the_outcome_of_a_run_is_that_of_its_own_rows(tmp_path: Path) -> None:
    """Meanwhile somebody gives up a letter of the run before."""
    graph, record = left(tmp_path, "delivering", "by_station")
    with Ledger(graph.state / "ledger.db") as ledger, Records(graph.state) as records:
        attempt(ledger, 0, 3, source="by_station", delivered=[0, 1], dead_lettered=[2])
        before = {"delivered": 2, "dead_lettered": 1}
        outputs = {"by_station": Output(3, "{}", ("part",), 3, before)}
        record = records.change(record, outputs=outputs)
        attempt(ledger, 3, 5, source="by_station", delivered=[3, 4])
        attempt(ledger, 5, 6, source="by_station", dead_lettered=[5])
        ledger.resolve([Resolution("by_station/2", "table", Outcome.DROPPED)])
        found = outcome_of(second_half(graph).state, record)
    expected = {"delivered": 2, "dropped": 0, "dead_lettered": 1, "refused": 0, "expired": 0}
    assert found == expected
