"""A dead letter of a job is a row of one run, and goes nowhere else. Without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from signoff.cli import app
from signoff.engine.batch.interrupts import Interrupts
from signoff.engine.query.base import Shared
from signoff.jobs import deliver
from signoff.jobs.letters import run_obstacles
from signoff.jobs.outputs import second_half
from signoff.jobs.records import Output, Records
from signoff.jobs.replay import RunReplayer
from signoff.jobs.run import load_job
from signoff.jobs.state_dir import claim
from signoff.ledger import DeadLetter, DeadLetters, Ledger
from signoff.pipeline.graph import Graph
from tests.jobs.scenes import write_job

DONE_1, DONE_2, OWED, REPLACED = "by_station/1", "by_station/6", "by_station/11", "by_station/16"
LETTERS = (DONE_1, DONE_2, OWED, REPLACED, "by_station/99")


@pytest.fixture
def graph(tmp_path: Path) -> Iterator[Graph]:
    """Five rows of each of two days that are done, of one that is owed, and of one that was done twice."""
    graph = load_job(write_job(tmp_path))
    claim(graph)
    days = [("01", "done"), ("02", "done"), ("03", "delivering"), ("04", "done"), ("04", "done")]
    with Ledger(graph.state / "ledger.db"), Records(graph.state) as records:
        for number, (day, state) in enumerate(days):
            values = f'{{"day": "2021-05-{day}", "least": 0}}'
            run = records.begin(f"failures@day=2021-05-{day}", "person", values, (None, None))
            outputs = {"by_station": Output(5, "{}", ("part",), number * 5)}
            records.change(run, state=state, outputs=outputs)
    with DeadLetters(graph.state / "dead_letters.db") as letters:
        letters.add([DeadLetter(each, "table", "no", b"{}") for each in LETTERS])
    yield graph


def replayed_by(graph: Graph, run: str) -> list[str]:
    """Which letters are replayed while this run is delivered, if all are asked for."""
    taken: list[str] = []

    class Taking(RunReplayer):
        def _group(self, source: str, stage: str, letters: Any) -> None:
            taken.extend(letter.event_id for letter in letters)
            for letter in letters:
                self.shared.letters.take_for_drop([letter])  # it is asked for no more

    with (
        Records(graph.state) as records,
        Ledger(graph.state / "ledger.db") as ledger,
        DeadLetters(graph.state / "dead_letters.db") as letters,
    ):
        letters.request_replay(letters.list())
        part = cast("Shared", SimpleNamespace(letters=letters, ledger=ledger, graph=graph))
        (record,) = (each for each in records.newest() if each.id == run)
        Taking([part], records, record).run()
    return taken


def test_a_letter_is_replayed_by_no_run_but_its_own(graph: Graph) -> None:
    assert replayed_by(graph, "failures@day=2021-05-03#1") == [OWED]
    with DeadLetters(graph.state / "dead_letters.db") as letters:
        found = {letter.event_id: letter for letter in letters.list()}
    assert all(letter.status == "stored" for letter in found.values())  # nothing was called delivered
    assert "signoff jobs run FILE -p day=2021-05-01 -p least=0" in found[DONE_1].reason
    assert "whose rows failures@day=2021-05-04#2 replaces" in found[REPLACED].reason
    assert "it is not known which run" in found["by_station/99"].reason
    assert found[DONE_1].first_reason == "no"


def test_what_another_run_will_replay_waits_for_it(graph: Graph) -> None:
    with DeadLetters(graph.state / "dead_letters.db") as letters:
        letters.request_replay(letters.get(OWED) + letters.get(DONE_2))
        letters.claim(letters.get(OWED) + letters.get(DONE_2), "both")  # as an earlier release may have
    with Records(graph.state) as records:
        (done,) = (each for each in records.newest() if each.id == "failures@day=2021-05-02#1")
        records.change(done, state="delivering")
    assert replayed_by(graph, "failures@day=2021-05-02#1") == [DONE_2]
    with DeadLetters(graph.state / "dead_letters.db") as letters:
        assert [letter.status for letter in letters.get(OWED)] == ["replaying"]


def test_the_command_leaves_the_request_for_the_run_that_goes_on(graph: Graph) -> None:
    file = str(graph.file)
    result = CliRunner().invoke(app, ["dead-letters", "replay", file, "--all"])
    assert result.exit_code == 1
    assert "each letter is replayed when its run resumes" in result.output
    assert f"{OWED} waiting at table: the run has not come to it yet" in result.output
    assert f"{DONE_1} not replayable at table: its run failures@day=2021-05-01#1 has ended" in result.output
    with DeadLetters(graph.state / "dead_letters.db") as letters:
        assert letters.keys(("replaying",)) == {(OWED, "table")}
    listed = CliRunner().invoke(app, ["dead-letters", "list", file]).output
    assert "* 1 cannot be replayed: it is of failures@day=2021-05-04#1, whose rows" in listed


def test_no_corrected_row_takes_the_place_of_one_that_no_run_would_send(graph: Graph, tmp_path: Path) -> None:
    (tmp_path / "better").write_text("{}")
    command = ["dead-letters", "resubmit", str(graph.file), DONE_1, "--payload", str(tmp_path / "better")]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 2 and "has ended" in result.output
    with DeadLetters(graph.state / "dead_letters.db") as letters:
        assert [letter.status for letter in letters.get(DONE_1)] == ["stored"]


def test_letters_of_a_pipeline_are_of_no_run(tmp_path: Path) -> None:
    assert run_obstacles(tmp_path)(DeadLetter("incoming/1", "table", "no", b"{}")) == ""


def test_what_is_delivered_has_a_replayer_of_its_own_run(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [cast("Shared", SimpleNamespace(letters=None))]
    engine = SimpleNamespace(
        replayer=SimpleNamespace(parts=parts), sinks={}, idle=True, run=lambda: None, close=lambda: None
    )
    monkeypatch.setattr(deliver, "DeliveryEngine", lambda *_: engine)
    with Records(graph.state) as records:
        (owed,) = records.in_logs()
        delivery = deliver.JobDelivery(cast("SparkSession", None), records, Interrupts())
        delivery._settle(second_half(graph), owed, delivery.run_ref(graph, owed))
    replayer: object = engine.replayer
    assert isinstance(replayer, RunReplayer) and replayer._run.id == owed.id
