"""A pipeline is changed while rows are owed: the rounds of two runs, with a real ledger and without Spark."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from pyroaring import BitMap64
from typer.testing import CliRunner

from signoff.cli import app
from signoff.engine.batch.interrupts import GaveUp, Interrupts
from signoff.engine.batch.letters import LetterStore
from signoff.engine.batch.missing_rows import Way, came_names
from signoff.engine.batch.passes import Passes
from signoff.engine.batch.runner import BatchRunner
from signoff.engine.batch.stage_counts import StageCounts
from signoff.engine.delivery.open_sinks import SinkEntry
from signoff.engine.delivery.sink_pass import Pass, SinkTask
from signoff.engine.plan.plan import SinkDelivery
from signoff.engine.plan.task_report import ReportKind, TaskReport, from_table, pack_rows
from signoff.engine.replay.batch_name import new_replay, replay_name
from signoff.engine.state_dir.removed_nodes import UNANSWERED, RemovedNodes, give_up_handed, what_is_gone
from signoff.errors import StateError
from signoff.ledger import DeadLetter, DeadLetters, Ledger, Outcome, RowOutcome, RowRef
from signoff.ledger.batch_state import BatchState, Done, HandedOn, SinkState
from signoff.ledger.explain import explain
from signoff.ledger.sequences import to_bytes
from signoff.link.job_sink import JobSinkConfig, invoker_place
from signoff.link.notes import Handed, LinkNotes
from signoff.link.sink import PipelineSinkConfig
from signoff.log import LogReader, LogWriter
from signoff.log.event_schema import EVENT_SCHEMA
from signoff.pipeline.graph import Graph, Node, Port
from signoff.pipeline.model import LogSettings, Retry, SinkConfig
from signoff.pipeline.settings import Settings
from signoff.sinks.contract import BatchRef, Part, Sink, Writer
from tests.engine.simulated_run import ToySinkConfig, ToySource

Row = tuple[int, str]


class NoSink(Sink):
    """The passes are made up: nobody writes."""

    def open(self, part: Part) -> Writer:
        raise NotImplementedError


class Changing:
    """One batch of a source, done by runs of a pipeline that is changed between them."""

    def __init__(self, path: Path, events: int) -> None:
        self._path = path
        self.batch = BatchRef("incoming", 0, events)
        self._ledger = Ledger(path / "ledger.db")
        self._letters = DeadLetters(path / "dead_letters.db")
        event = {"payload": b"{}", "position": 0, "received_at": datetime.datetime.now(datetime.UTC)}
        rows = [{**dict.fromkeys(EVENT_SCHEMA.names), **event} for _ in range(events)]
        log = LogWriter(path / "log", LogSettings())
        log.append(pa.RecordBatch.from_pylist(rows, schema=EVENT_SCHEMA))
        log.sync()
        log.close()

    def patience(self, sinks: Sequence[str], seconds: float | None) -> None:
        """What a run with these sinks does, that is to end, while the batch waits for another pipeline."""
        runner = self._runner(sinks)
        runner.passes.control.patience_s = seconds
        known = runner.open(self.batch)
        assert runner.waits_elsewhere(known)
        runner.waits.see_patience(known)

    def run(self, sinks: Sequence[str], *results: TaskReport, ask: Sequence[str] | None = None) -> BatchState:
        """One round of a run with these sinks, of which the pass says this. `ask`: only some of them."""
        runner = self._runner(sinks)
        runner.passes.results = lambda work: [  # type: ignore[method-assign]
            result for result in results if result.name in {*work.asked, *work.held}
        ]
        known = runner.open(self.batch)
        asked = {n: state for n, state in runner.owing(known).items() if ask is None or n in ask}
        return runner.round(self.batch, known, asked)

    def _runner(self, sinks: Sequence[str]) -> BatchRunner:
        passes = Passes(
            source="incoming",
            spark=cast(Any, None),
            state=self._path,
            log=self._path / "log",
            sinks={name: SinkEntry(ToySinkConfig(), NoSink()) for name in sinks},
            control=Interrupts(),
            range_plan=cast(Any, None),
            steps={},
            isolate=cast(Any, None),
        )
        return BatchRunner(
            passes,
            policies={},
            stage_counts=StageCounts("incoming", {}),
            fail_fast=False,
            ledger=self._ledger,
            letters=LetterStore("incoming", self._letters, LogReader(self._path / "log")),
            ways={name: Way(frozenset({"incoming"}), frozenset()) for name in sinks},
        )

    def hand_on(self, sinks: Mapping[str, SinkState]) -> None:
        """An earlier run has handed rows on to other pipelines."""
        ref, all_of_them = self.batch, BitMap64(range(self.batch.end))
        self._ledger.open_batch(ref.source, ref.start, ref.end, list(sinks))
        self._ledger.record(
            ref.source, ref.start, ref.end, delivered=BitMap64(), outcomes=[], sinks=sinks, owed=all_of_them
        )

    @property
    def letters(self) -> list[tuple[str, str]]:
        return [(letter.event_id, letter.stage) for letter in self._letters.list()]

    @property
    def account(self) -> dict[str, int]:
        account = self._ledger.account("incoming", self.batch.end).as_dict()
        return {word: number for word, number in account.items() if number and word != "received"}

    def close(self) -> None:
        self._ledger.close()
        self._letters.close()


@pytest.fixture
def changing(tmp_path: Path) -> Iterator[Any]:
    made: list[Changing] = []

    def make(events: int = 1) -> Changing:
        made.append(Changing(tmp_path, events))
        return made[-1]

    yield make
    for one in made:
        one.close()


def packed(rows: Iterable[Row]) -> bytes:
    sequences, children = zip(*rows, strict=True)
    return pack_rows([(np.array(sequences, dtype=np.int64), pa.array(children, pa.string()))])


def down(sink: str, *rows: Row) -> TaskReport:
    return TaskReport(sink, ReportKind.OWED, text="down", number=1, blob=packed(rows))


def came(sink: str, *rows: Row) -> TaskReport:
    return TaskReport(sink, ReportKind.CAME, blob=packed(rows))


def held(sink: str, *origins: int) -> TaskReport:
    return TaskReport(sink, ReportKind.HELD, blob=to_bytes(BitMap64(origins)))


def signed(sink: str, *origins: int) -> TaskReport:
    return TaskReport(sink, ReportKind.SIGNED, number=len(origins), blob=to_bytes(BitMap64(origins)))


@pytest.mark.case(44)
def test_a_sink_that_is_renamed_does_not_stand_for_another_that_is_removed(changing: Any) -> None:
    pipeline = changing()
    pipeline.run(["a", "b"], down("a", (0, "")), down("b", (0, "")))
    assert pipeline.run(["a2"], signed("a2", 0)).settled
    assert pipeline.letters == [("incoming/0", "a"), ("incoming/0", "b")], "nobody knows which of them it is"
    assert pipeline.account == {"dead_lettered": 1}


def test_a_renamed_sink_that_had_all_its_rows_does_not_stand_for_one_that_is_removed(changing: Any) -> None:
    pipeline = changing()
    pipeline.run(["a", "b"], signed("a", 0), down("b", (0, "")))
    pipeline.run(["a2"], signed("a2", 0))
    assert pipeline.letters == [("incoming/0", "b")]
    assert pipeline.account == {"dead_lettered": 1}


def test_sinks_that_are_renamed_have_the_rows_of_the_events_that_come_to_all_of_them(changing: Any) -> None:
    pipeline = changing(2)
    pipeline.run(["a", "b"], down("a", (0, ""), (1, "")), down("b", (0, ""), (1, "")))
    pipeline.run(["a2", "b2"], signed("a2", 0, 1), signed("b2", 0))
    assert pipeline.letters == [("incoming/1", "a"), ("incoming/1", "b")]
    assert pipeline.account == {"delivered": 1, "dead_lettered": 1}


def test_a_sink_that_was_removed_before_does_not_count_when_another_is_renamed(changing: Any) -> None:
    pipeline = changing(2)
    pipeline.run(["a", "b"], down("a", (0, ""), (1, "")), down("b", (0, "")))
    pipeline.run(["a"], down("a", (0, ""), (1, "")))
    assert pipeline.letters == [("incoming/0", "b")]
    pipeline.run(["a2"], signed("a2", 0, 1))
    assert pipeline.letters == [("incoming/0", "b")]
    assert pipeline.account == {"delivered": 1, "dead_lettered": 1}


def told(path: Path, number: int, *sinks: str) -> dict[str, str]:
    """What is said of an event, of each sink that it is said of; `sinks`: the pipeline as it is now."""
    nodes = {name: Node(name, "sink", ToySinkConfig(), (Port("incoming"),)) for name in sinks}
    nodes["incoming"] = Node("incoming", "source", ToySource())
    graph = Graph(Settings(name="x", state="."), "x.yaml", path, nodes)
    story = explain(graph, f"incoming/{number}", lambda _: LogReader(path / "log"))
    return {line.stage: f"{line.state}: {line.text}" for line in story.lines} | {"why": story.why}


@pytest.mark.case(44)
def test_explain_says_that_rows_of_a_renamed_sink_are_owed_by_the_new_one_until_they_are_delivered(
    changing: Any, tmp_path: Path
) -> None:
    pipeline = changing(3)
    pipeline.run(["hook", "table"], down("hook", (0, ""), (1, "")), down("table", (0, ""), (1, "")))
    why = told(tmp_path, 0, "alarm_hook", "table")["why"]
    assert 'the next run gives it to "alarm_hook", if it comes there, or makes a dead letter' in why
    pipeline.run(["alarm_hook", "table"], down("alarm_hook", (0, ""), (1, "")), down("table", (0, "")))
    said = told(tmp_path, 0, "alarm_hook", "table")
    assert said["hook"] == 'done: is not in the pipeline any more; "alarm_hook" owes its rows now'
    assert said["alarm_hook"].startswith("owed") and said["table"].startswith("owed")
    pipeline.run(["alarm_hook", "table"], signed("alarm_hook", 0, 1), down("table", (0, "")))
    said = told(tmp_path, 0, "alarm_hook", "table")
    assert said["hook"].endswith("whatever had reached it was delivered by the sink that replaced it")
    assert said["table"].startswith("owed")


def test_explain_does_not_say_that_a_sink_that_replaced_another_delivered_what_is_a_letter(
    changing: Any, tmp_path: Path
) -> None:
    pipeline = changing()
    pipeline.run(["hook"], down("hook", (0, "")))
    pipeline.run(["new"], down("new", (0, "")))
    pipeline.run(["new"])
    said = told(tmp_path, 0, "new")
    assert said["new"].startswith("dead_lettered") and "delivered" not in said["hook"]
    assert said["hook"].endswith("rows that had reached it went to the sink that replaced it")


def test_explain_says_of_a_removed_sink_that_had_finished_that_it_took_its_rows_itself(
    changing: Any, tmp_path: Path
) -> None:
    pipeline = changing()
    pipeline.run(["hook", "table"], signed("hook", 0), down("table", (0, "")))
    assert told(tmp_path, 0, "table")["hook"].startswith(
        "done: is not in the pipeline any more; took its rows"
    )
    pipeline.run(["table", "new"], down("table", (0, "")), down("new", (0, "")))
    assert told(tmp_path, 0, "table", "new")["hook"].endswith("took its rows")


def test_explain_says_whether_rows_of_an_event_reached_a_sink_where_the_ledger_knows(
    changing: Any, tmp_path: Path
) -> None:
    pipeline = changing(2)
    pipeline.run(["a", "b"], signed("a", 0), down("b", (0, "")))
    said = [told(tmp_path, number, "a", "b") for number in (0, 1)]
    assert said[0]["a"] == "done: took its rows", "b has taken nothing yet"
    assert said[1]["a"] == "done: no row of this event reached it"
    pipeline.run(["a", "b"], signed("b", 0))
    said = [told(tmp_path, number, "a", "b") for number in (0, 1)]
    assert (
        said[0]["a"]
        == said[0]["b"]
        == ("done: took all that reached it; whether a row of this event did is not recorded")
    )
    assert said[1]["a"] == said[1]["b"] == "done: no row of this event reached it"


PARTS = [(0, "0"), (0, "1"), (0, "2"), (1, "")]


@pytest.mark.parametrize(
    ("task", "said"),
    [({"held": True}, PARTS[:3]), ({"says_rows": True}, PARTS), ({}, [])],
    ids=["a sink that is not asked", "rows are noted by name", "nobody wants to know"],
)
def test_a_pass_says_the_names_of_rows_that_are_to_be_known_again(
    monkeypatch: pytest.MonkeyPatch, task: dict[str, Any], said: list[Row]
) -> None:
    context = SimpleNamespace(partitionId=lambda: 0, taskAttemptId=lambda: 0, attemptNumber=lambda: 0)
    monkeypatch.setattr("signoff.engine.delivery.sink_pass.TaskContext", SimpleNamespace(get=lambda: context))
    rows = [{"_sequence": n, "_child": child, "alive": True} for n, child in PARTS]
    served = SinkTask("out", NoSink(), Retry(), (SinkDelivery("alive", (), ""),), pa.schema([]), **task)
    (table,) = Pass(BatchRef("incoming", 0, 2), (served,), (), None)([pa.RecordBatch.from_pylist(rows)])
    found = came_names(from_table(table))
    assert [(n, child) for n, some in found.items() for child in some] == said


@pytest.mark.case(44)
def test_rows_of_a_split_event_are_letters_if_only_others_of_it_come_to_a_sink_that_was_down(
    changing: Any,
) -> None:
    pipeline = changing(2)
    state = pipeline.run(["table"], down("table", *PARTS)).sinks["table"]
    assert state.wants_all and state.arrived == BitMap64([0, 1]), "it owes the whole batch"
    left = [(0, "1"), (1, "")]
    pipeline.run(["table"], signed("table", 0, 1), came("table", *left))
    assert pipeline.letters == [("incoming/0/0", "table"), ("incoming/0/2", "table")]
    assert pipeline.account == {"delivered": 1, "dead_lettered": 1}


def test_rows_of_an_event_that_is_split_no_more_are_letters_of_a_sink_that_was_down(changing: Any) -> None:
    pipeline = changing(2)
    pipeline.run(["table"], down("table", *PARTS))
    pipeline.run(["table"], signed("table", 0, 1), came("table", (0, ""), (1, "")))
    assert [event for event, _ in pipeline.letters] == [f"incoming/0/{n}" for n in range(3)]


def test_rows_of_a_split_event_that_all_come_are_delivered_and_one_without_any_is_one_letter(
    changing: Any,
) -> None:
    pipeline = changing(3)
    pipeline.run(["table"], down("table", *PARTS, (2, "0"), (2, "1")))
    pipeline.run(["table"], signed("table", 0, 1), came("table", *PARTS))
    assert pipeline.letters == [("incoming/2", "table")]
    assert pipeline.account == {"delivered": 2, "dead_lettered": 1}


@pytest.mark.case(44)
def test_rows_of_a_split_event_that_a_sink_was_not_asked_for_are_letters_if_they_do_not_come_any_more(
    changing: Any,
) -> None:
    pipeline = changing(2)
    said = [signed("a", 0, 1), held("b", 0, 1), came("b", *PARTS[:3])]
    pipeline.run(["a", "b"], *said, ask=["a"])
    pipeline.run(["a", "b"], signed("b", 0, 1), came("b", (0, "2"), (1, "")))
    assert pipeline.letters == [("incoming/0/0", "b"), ("incoming/0/1", "b")]
    assert pipeline.account == {"delivered": 1, "dead_lettered": 1}


HANDED = {"out": HandedOn(BitMap64([0, 1, 2]), attempts=1, since=1.0)}


def test_a_run_that_is_to_end_does_not_wait_for_ever_for_the_pipeline_behind_a_sink_that_is_gone(
    changing: Any, tmp_path: Path
) -> None:
    pipeline = changing(3)
    pipeline.hand_on(HANDED)
    pipeline.patience(["table"], None)
    pipeline.patience(["table"], 60.0)
    with pytest.raises(GaveUp, match='"out", which is not in the pipeline any more, has not answered'):
        pipeline.patience(["table"], -1.0)
    notes = LinkNotes(tmp_path / "links" / "b.buffer" / "link.db")
    notes.note(Handed("out", pipeline.batch, 0, 3, BitMap64(range(3))))
    notes.close()
    pipeline.patience(["table"], -1.0)  # a buffer: nobody else is waited for


@pytest.fixture
def left(tmp_path: Path) -> Callable[..., Graph]:
    """A pipeline with these sinks, whose sink `out` has handed three events on to the link `here`."""
    (tmp_path / "state").mkdir()
    with Ledger(tmp_path / "state" / "ledger.db") as ledger:
        ledger.open_batch("incoming", 0, 3, ["out"])
        ledger.record(
            "incoming", 0, 3, delivered=BitMap64(), outcomes=[], sinks=HANDED, owed=BitMap64(range(3))
        )
    (tmp_path / "here").mkdir()
    notes = LinkNotes(tmp_path / "here" / "link.db")
    notes.note(Handed("out", BatchRef("incoming", 0, 3), 0, 3, BitMap64(range(3))))
    notes.close()

    def graph(**sinks: SinkConfig) -> Graph:
        nodes = {name: Node(name, "sink", config, (Port("incoming"),)) for name, config in sinks.items()}
        nodes["incoming"] = Node("incoming", "source", ToySource())
        return Graph(Settings(name="x", state="state"), "x.yaml", tmp_path, nodes)

    return graph


def gone(graph: Graph) -> RemovedNodes:
    with Ledger(graph.state / "ledger.db") as ledger, DeadLetters(graph.state / "dead_letters.db") as letters:
        return what_is_gone(graph, ledger, letters)


@pytest.mark.case(44)
@pytest.mark.parametrize("path", [None, "./elsewhere"], ids=["removed", "another path"])
def test_events_that_were_handed_on_over_a_link_that_is_gone_are_named(left: Any, path: str | None) -> None:
    sinks = {"table": ToySinkConfig()} if path is None else {"out": PipelineSinkConfig(path=path)}
    graph = left(**sinks)
    if path is not None:  # as the first run with it has made it
        LinkNotes(graph.base / path / "link.db").close()
    found = gone(graph)
    assert found.as_dict() == {"out": {"handed_on": 3}}
    (sentence,) = found.sentences()
    assert 'sink "out" has handed on rows of 3 events' in sentence and "with the path it had" in sentence


def test_events_that_asked_for_runs_are_named_and_given_up_when_the_sink_is_of_another_type(
    left: Any,
) -> None:
    graph = left(out=ToySinkConfig())
    notes = LinkNotes(invoker_place(graph.state, "out").database)
    notes.note(Handed("out", BatchRef("incoming", 0, 3), 0, 3, BitMap64(range(3))))
    notes.close()
    assert gone(graph).as_dict() == {"out": {"handed_on": 3}}
    assert gone(left(out=JobSinkConfig(job="./job.yaml"))).as_dict() == {}
    file = graph.base / "x.yaml"
    file.write_text(
        "name: x\nstate: ./state\nsources:\n  incoming: {type: files, path: in}\n"
        "sinks:\n  out: {type: files, input: incoming, path: ./out}\n"
    )
    given_up = CliRunner().invoke(app, ["buffers", "drop", str(file), "out", "--yes"])
    assert given_up.exit_code == 0 and "3 events wait no more" in given_up.output
    assert gone(graph).as_dict() == {}
    with Ledger(graph.state / "ledger.db") as ledger:
        assert ledger.books("incoming").account(3).dropped == 3


@pytest.mark.parametrize("name", ["out", "renamed"])
def test_a_link_whose_disk_is_away_cannot_be_read_and_nothing_behind_it_is_given_up(
    left: Any, name: str
) -> None:
    graph = left(**{name: PipelineSinkConfig(path="./here")})
    (graph.base / "here").rename(graph.base / "away")
    found = gone(graph)
    assert found.handed == {} and f'link of sink "{name}" cannot be read' in found.unread
    (sentence,) = found.sentences()
    assert "is its disk mounted?" in sentence and "buffers drop" not in sentence
    with Ledger(graph.state / "ledger.db") as ledger:
        with pytest.raises(StateError, match="cannot be read"):
            give_up_handed(graph, ledger, "out")
        assert ledger.books("incoming").account(3).in_flight == 3
    file = graph.base / "x.yaml"
    file.write_text(
        "name: x\nstate: ./state\nsources:\n  incoming: {type: files, path: in}\n"
        f"sinks:\n  {name}: {{type: pipeline, input: incoming, path: ./here}}\n"
    )
    refused = CliRunner().invoke(app, ["buffers", "drop", str(file), "out", "--yes"])
    assert isinstance(refused.exception, StateError) and "nothing is discarded" in str(refused.exception)


def test_letters_that_were_handed_on_over_a_link_that_is_gone_are_named_and_stored_again(left: Any) -> None:
    graph = left(out=PipelineSinkConfig(path="./here"))
    with Ledger(graph.state / "ledger.db") as ledger, DeadLetters(graph.state / "dead_letters.db") as letters:
        ledger.open_batch("incoming", 3, 5, ["other"])
        letters.add([DeadLetter(f"incoming/{n}", "incoming", "bad", b"{}") for n in (3, 4)])
        dead = [RowOutcome(RowRef(n), "incoming", Outcome.DEAD_LETTERED, "bad") for n in (3, 4)]
        ledger.record(
            "incoming", 3, 5, delivered=BitMap64(), outcomes=dead, sinks={"other": Done()},
            owed=BitMap64(),
        )  # fmt: skip
        notes = LinkNotes(graph.base / "here" / "link.db")
        for number, sink in ((3, "out"), (4, "removed")):
            letters.request_replay(asked := letters.get(f"incoming/{number}"))
            batch = new_replay("incoming", asked)
            letters.claim(asked, replay_name(batch))
            letters.hand_on(asked, [sink], "")
            if sink == "out":
                notes.note(Handed("out", batch, 3, 4, BitMap64([3])))
                noted = notes.each()[-1]
        assert gone(graph).as_dict() == {"removed": {"handed_on": 1}}
        notes.forget(noted)
        assert gone(graph).unheard == {"out": 1}
        assert any('sink "out", where nothing is known of it' in said for said in gone(graph).sentences())
        notes.note(noted)
        notes.close()
    assert gone(graph).as_dict() == {"removed": {"handed_on": 1}}
    file = graph.base / "x.yaml"
    file.write_text(
        "name: x\nstate: ./state\nsources:\n  incoming: {type: files, path: in}\n"
        "sinks:\n  out: {type: pipeline, input: incoming, path: ./here}\n"
    )
    given_up = CliRunner().invoke(app, ["buffers", "drop", str(file), "removed", "--yes"])
    assert given_up.exit_code == 0 and "1 dead letters wait no more" in given_up.output
    with DeadLetters(graph.state / "dead_letters.db") as letters:
        assert [(x.sequence, x.status) for x in letters.list()] == [(3, "handed"), (4, "stored")]
        assert letters.get("incoming/4")[0].reason == UNANSWERED.format("removed")
    assert gone(graph).as_dict() == {}


@pytest.mark.parametrize("name", ["out", "renamed"])
def test_events_that_were_handed_on_over_a_link_of_the_pipeline_are_heard_of(left: Any, name: str) -> None:
    assert gone(left(**{name: PipelineSinkConfig(path="./here")})).as_dict() == {}


def test_explain_says_that_an_event_was_handed_on_by_a_sink_that_is_gone(left: Any) -> None:
    graph = left(table=ToySinkConfig())
    why = explain(graph, "incoming/1", LogReader).why
    assert "out, which is not in the pipeline, has handed it on" in why and "to another pipeline" in why
    for path in ("./here", "./elsewhere"):
        why = explain(left(out=PipelineSinkConfig(path=path)), "incoming/1", LogReader).why
        assert "out has handed it on" in why and "to another pipeline" in why and "buffer" not in why


@pytest.mark.case(44)
def test_what_was_handed_on_over_a_link_that_is_gone_can_be_given_up(left: Any) -> None:
    graph = left(table=ToySinkConfig())
    with Ledger(graph.state / "ledger.db") as ledger:
        assert give_up_handed(left(out=PipelineSinkConfig(path="./here")), ledger, "out") == 0
        assert give_up_handed(graph, ledger, "other") == 0
        assert ledger.books("incoming").account(3).in_flight == 3
        assert [give_up_handed(graph, ledger, "out") for _ in range(2)] == [3, 0]
        account = ledger.books("incoming").account(3)
        assert (account.dropped, account.in_flight, account.balanced) == (3, 0, True)
        said = {outcome.reason for outcome in ledger.exceptions("incoming", 0, 3)}
    assert said == {UNANSWERED.format("out")}
    assert gone(graph).as_dict() == {}


def test_a_new_sink_that_was_not_asked_at_once_lacks_no_rows_that_never_come_to_it(changing: Any) -> None:
    pipeline = changing(3)
    left = [(0, ""), (1, "")]
    pipeline.run(["a"], signed("a", 2), down("a", *left))
    pipeline.run(["a", "new"], down("a", *left), held("new", 0), ask=["a"])
    known = pipeline.run(["a", "new"], signed("new", 0), came("new", (0, "")), ask=["new"])
    assert known.sinks["new"].done and pipeline.letters == []
