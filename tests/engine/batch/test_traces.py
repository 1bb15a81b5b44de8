"""The spans of batches, from what rounds say of them; with a real log, ledger and collector."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from pyroaring import BitMap64

from signoff.engine.batch.traces import BatchTraces
from signoff.engine.plan.task_report import ReportKind, TaskReport
from signoff.ledger import Ledger, Outcome, RowOutcome, RowRef
from signoff.ledger.batch_state import BatchState, Done, OwesAll, OwesRows, SinkState
from signoff.ledger.sequences import to_bytes
from signoff.log import LogReader, LogWriter
from signoff.pipeline.model import LogSettings
from signoff.pipeline.trace_settings import TraceSettings
from signoff.sinks.contract import BatchRef
from signoff.sources.events import event_batch, piece
from signoff.traces.chosen import Chooser
from signoff.traces.export import Exporter
from signoff.traces.spans import Where
from tests.traces.collector import Collector, Received

SOURCE = "incoming"
TRACES = ["1" * 32, "2" * 32]
BATCH = BatchRef(SOURCE, 0, 3)
DOWN = OwesAll(attempts=1, error="it is down: my secret payload", since=1.0)


class Batches:
    """Three events, of which the first two are traced, on their way to sinks `out` and `table`."""

    def __init__(self, directory: Path, collector: Collector, traced_events: int = 2) -> None:
        headers = [{"traceparent": f"00-{trace}-{'a' * 16}-01"} for trace in TRACES[:traced_events]]
        log = LogWriter(directory / "log", LogSettings())
        events = piece([b"{}"] * 3, [0, 1, 2], {})
        log.append(event_batch(events, headers=[*headers, *[{}] * (3 - len(headers))]))
        log.sync()
        log.close()
        self.directory, self.collector = directory, collector
        self.ledger = Ledger(directory / "ledger.db")
        self.reader = LogReader(directory / "log")
        self.restart()

    def restart(self) -> None:
        settings = TraceSettings(endpoint=self.collector.endpoint)
        self.exporter = Exporter(settings, "alarms", "engine")
        self.traces = BatchTraces(
            Where(SOURCE, "rabbitmq"),
            {"out": "rabbitmq", "stream": "nats", "log": "redis", "table": "sqlite"}, self.reader,
            Chooser(SOURCE, settings), self.exporter, received=True,
        )  # fmt: skip

    def round(
        self,
        signed: Mapping[str, Sequence[int]],
        *,
        owed: Sequence[int] = (),
        sinks: Mapping[str, SinkState] | None = None,
        outcomes: Sequence[RowOutcome] = (),
        asked: Sequence[str] = ("out", "table"),
    ) -> BatchState:
        """A round as the runner has it."""
        done = sorted({0, 1, 2} - set(owed) - {each.row.sequence for each in outcomes})
        self.ledger.open_batch(SOURCE, 0, 3, ["out", "table"])
        states: dict[str, SinkState] = {name: Done() for name in asked} | dict(sinks or {})
        recorded = self.ledger.record(
            SOURCE, 0, 3, delivered=BitMap64(done), outcomes=outcomes, sinks=states, owed=BitMap64(owed)
        )
        results = [
            TaskReport(name, ReportKind.SIGNED, number=len(rows), blob=to_bytes(BitMap64(rows)))
            for name, rows in signed.items()
        ]
        self.traces.heard(BATCH, asked, 1.0, results, outcomes, recorded)
        return recorded

    def spans(self, trace: str) -> dict[str, Received]:
        self.exporter.close()
        return {span.name: span for span in self.collector.spans if span.trace == trace}


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as running:
        yield running


def test_each_traced_event_has_its_own_spans_and_the_batch_links_to_all(
    tmp_path: Path, collector: Collector
) -> None:
    batches = Batches(tmp_path, collector)
    batches.round({"out": [0, 1, 2], "table": [0, 2]})
    first, second = batches.spans(TRACES[0]), batches.spans(TRACES[1])
    assert set(first) == {"process incoming", "send out", "send table"}
    assert set(second) == {"process incoming", "send out"}, "a filter was in front of the other sink"
    assert first["send out"].parent == first["process incoming"].id
    (whole,) = [span for span in collector.named("process incoming") if not span.parent]
    assert [trace for trace, _ in whole.links] == TRACES
    assert whole.attributes["messaging.batch.message_count"] == 3
    assert len(collector.spans) == 6


def test_of_a_batch_with_one_traced_event_there_is_one_process_span(
    tmp_path: Path, collector: Collector
) -> None:
    batches = Batches(tmp_path, collector, traced_events=1)
    batches.round({"out": [0, 1, 2], "table": [0, 1, 2]})
    spans = batches.spans(TRACES[0])
    assert len(collector.spans) == 3
    assert not spans["process incoming"].links
    assert spans["process incoming"].attributes["messaging.batch.message_count"] == 3


def test_a_sink_that_is_tried_again_is_one_span_with_its_retries_and_no_reason(
    tmp_path: Path, collector: Collector
) -> None:
    batches = Batches(tmp_path, collector)
    for _ in range(2):
        batches.round({"out": [0, 1, 2]}, owed=[0, 1, 2], sinks={"table": DOWN})
    batches.round({"table": [0, 1, 2]}, asked=["table"])
    spans = batches.spans(TRACES[0])
    assert set(spans) == {"process incoming", "send out", "send table"}
    assert [name for name, _ in spans["send table"].events] == ["retry", "retry"]
    assert spans["send table"].start_ns == 10**9
    assert len([span for span in collector.spans if span.name == "send out"]) == 2, "one for each event"
    assert not any("secret payload" in span.text for span in collector.spans)


def test_dead_letters_are_events_of_the_sink_or_of_the_process_span(
    tmp_path: Path, collector: Collector
) -> None:
    batches = Batches(tmp_path, collector)
    outcomes = [
        RowOutcome(RowRef(0), "table", Outcome.DEAD_LETTERED, "my secret payload"),
        RowOutcome(RowRef(1), "parsed", Outcome.DEAD_LETTERED, "my secret payload"),
    ]
    batches.round({"out": [0, 2], "table": [2]}, outcomes=outcomes)
    first, second = batches.spans(TRACES[0]), batches.spans(TRACES[1])
    assert first["send table"].failed
    assert first["send table"].events == (("dead_letter", {"signoff.stage": "table"}),)
    assert not first["send out"].failed
    assert set(second) == {"process incoming"}
    assert second["process incoming"].events == (("dead_letter", {"signoff.stage": "parsed"}),)
    assert not any("secret payload" in span.text for span in collector.spans)


def test_an_event_that_is_owed_has_no_process_span_yet_and_the_same_ids_after_a_restart(
    tmp_path: Path, collector: Collector
) -> None:
    batches = Batches(tmp_path, collector)
    one = OwesRows((RowRef(0),), attempts=1, error="it is down", since=1.0)
    batches.round({"out": [0, 1, 2], "table": [1, 2]}, owed=[0], sinks={"table": one})
    assert set(batches.spans(TRACES[0])) == {"send out"}
    assert set(batches.spans(TRACES[1])) == {"send out", "send table", "process incoming"}
    before = batches.spans(TRACES[0])["send out"]

    batches.restart()
    batches.round({"out": [0, 1, 2], "table": [0]})
    again = batches.spans(TRACES[0])
    assert set(again) == {"process incoming", "send out", "send table"}
    assert again["send out"].id == before.id


def test_what_is_handed_on_are_the_contexts_of_the_spans_of_sinks_that_can(
    tmp_path: Path, collector: Collector
) -> None:
    batches = Batches(tmp_path, collector)
    carried = batches.traces.carried(BATCH)
    assert set(carried) == {"out", "stream", "log"}
    batches.round({"out": [0, 1, 2], "table": [0, 1, 2]})
    span = batches.spans(TRACES[0])["send out"]
    assert carried["out"]["incoming/0"] == f"00-{TRACES[0]}-{span.id}-01"
    assert set(carried["out"]) == {"incoming/0", "incoming/1"}
