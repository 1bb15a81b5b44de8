"""Rows that wait for the result of their window hear what became of it: without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyroaring import BitMap64

from signoff import load
from signoff.engine.feedback.results import ResultsFeedback, build_result_feedback
from signoff.engine.split.boundaries import buffer_place
from signoff.engine.split.division import all_boundaries
from signoff.engine.split.stateful import WindowBoundary
from signoff.engine.state_dir.buffers import read_buffers
from signoff.errors import StateError
from signoff.ledger.batch_state import Done, HandedOn
from signoff.ledger.ledger import Ledger
from signoff.ledger.outcome import Outcome, RowOutcome, RowRef
from signoff.link.handover import HandoverSink, LinkPlace
from signoff.log import LogReader
from signoff.pipeline.graph import Graph
from signoff.pipeline.model import SourceConfig
from signoff.sinks.contract import BatchRef, Part

PIPELINE = """
name: alarms
sources:
  incoming: {{type: files, path: "./in/*.jsonl"}}
transforms:
  counts:
    {{type: window, input: incoming, size: 1m, keys: [message_id], aggregates: {{n: count(*)}},
      idle_after: 1s, acknowledge: {acknowledge}}}
sinks:
  table: {{type: sqlite, input: counts, path: ./out.db, table: alarms}}
"""
MINUTE = 60_000_000


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger(tmp_path / "ledger.db") as found:
        yield found


def pipeline(tmp_path: Path, acknowledge: str) -> tuple[Graph, WindowBoundary]:
    file = tmp_path / "alarms.yaml"
    file.write_text(PIPELINE.format(acknowledge=acknowledge))
    graph = load(file)
    boundary = next(boundary for _, boundary in all_boundaries(graph) if isinstance(boundary, WindowBoundary))
    return graph, boundary


def put(place: LinkPlace, sink: str, batch: BatchRef, rows: list[dict[str, Any]]) -> None:
    """Hand rows on, as JSON objects."""
    link = HandoverSink(sink, place, 1024**2, "block")
    writer = link.open(Part(batch, 0, 0))
    columns = {name: pa.array([row[name] for row in rows]) for name in rows[0]}
    ids = [f"{batch.start}/{number}" for number in range(len(rows))]
    origins = pa.array([batch.start] * len(rows), pa.int64())
    writer.write(pa.RecordBatch.from_pydict({"event_id": ids, **columns, "_origin": origins}))
    link.commit(batch, [writer.close() or b""])
    link.release()


def row(minute: int, key: str | None) -> dict[str, Any]:
    return {"__start": minute * MINUTE, "message_id": key, "__p0": 1}


def result(minute: int, key: str | None) -> dict[str, Any]:
    return {"window_start": f"1970-01-01T00:{minute:02}:00Z", "message_id": key, "n": 1}


def wait(ledger: Ledger, boundary: WindowBoundary, rows: int) -> None:
    """All rows in front of the state wait for results."""
    ledger.open_batch(boundary.source, 0, rows, [boundary.results.sink])
    every = BitMap64(range(rows))
    state = HandedOn(every, attempts=1)
    ledger.record(
        boundary.source,
        0,
        rows,
        delivered=BitMap64(),
        outcomes=[],
        sinks={boundary.results.sink: state},
        owed=every,
    )


def settle(
    ledger: Ledger, boundary: WindowBoundary, start: int, end: int, outcomes: list[RowOutcome]
) -> None:
    ledger.open_batch(boundary.results.source, start, end, ["table"])
    bad = BitMap64(outcome.row.sequence for outcome in outcomes)
    ledger.record(
        boundary.results.source, start, end, delivered=BitMap64(range(start, end)) - bad, outcomes=outcomes,
        sinks={"table": Done()}, owed=BitMap64(),
    )  # fmt: skip


def feedback(
    graph: Graph,
    boundary: WindowBoundary,
    ledger: Ledger,
    comes_again: Callable[[BatchRef], bool] = lambda _: False,
) -> ResultsFeedback:
    behind: Any = SimpleNamespace(needed_elsewhere=[])
    front: Any = SimpleNamespace(comes_again=comes_again, look_again=lambda start: None)
    (made,) = build_result_feedback(graph, ledger, {boundary.source: front, boundary.results.source: behind})
    return made


@pytest.mark.parametrize("now", ["delivered", "save_point"])
def test_rows_are_settled_by_the_result_of_their_window_also_when_later_ones_do_not_wait(
    tmp_path: Path, ledger: Ledger, now: str
) -> None:
    graph, boundary = pipeline(tmp_path, "delivered")
    rows = [row(0, "x"), row(0, "y"), row(1, "x"), row(0, "x"), row(0, None)]
    put(buffer_place(graph, boundary.source), boundary.sink, BatchRef("incoming", 0, 9), rows)
    wait(ledger, boundary, len(rows))
    closed = BatchRef(boundary.source, 5, 5, 3)
    results = [result(0, "x"), result(0, "y"), result(0, None)]
    put(buffer_place(graph, boundary.results.source), boundary.results.sink, closed, results)
    graph, boundary = pipeline(tmp_path, now)
    bring = feedback(graph, boundary, ledger)
    bring.tend()
    assert ledger.open_batches(boundary.source)[0].owed == BitMap64(range(5))
    refused = RowOutcome(RowRef(1), "table", Outcome.DEAD_LETTERED, "no")
    settle(ledger, boundary, 0, 3, [refused])
    bring.tend()
    assert ledger.open_batches(boundary.source)[0].owed == BitMap64([2])
    assert [one.row.sequence for one in ledger.exceptions(boundary.source, 0, 5)] == [1]
    assert bring.needed_from() > 3, "nothing of these results is read again"
    bring.close()


def test_a_row_that_came_after_a_result_waits_for_the_next(tmp_path: Path, ledger: Ledger) -> None:
    graph, boundary = pipeline(tmp_path, "delivered")
    put(
        buffer_place(graph, boundary.source),
        boundary.sink,
        BatchRef("incoming", 0, 9),
        [row(0, "x"), row(0, "x")],
    )
    wait(ledger, boundary, 2)
    update = BatchRef(boundary.source, 1, 1, 1)
    put(buffer_place(graph, boundary.results.source), boundary.results.sink, update, [result(0, "x")])
    settle(ledger, boundary, 0, 1, [])
    bring = feedback(graph, boundary, ledger)
    bring.tend()
    assert ledger.open_batches(boundary.source)[0].owed == BitMap64([1])
    bring.close()


def test_what_the_ledger_could_not_take_is_told_later(
    tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, boundary = pipeline(tmp_path, "delivered")
    rows, place = [row(0, "x"), row(0, "y"), row(0, "x")], buffer_place(graph, boundary.results.source)
    put(buffer_place(graph, boundary.source), boundary.sink, BatchRef("incoming", 0, 9), rows)
    wait(ledger, boundary, 3)
    put(place, boundary.results.sink, BatchRef(boundary.source, 2, 2, 1), [result(0, "x")])
    put(place, boundary.results.sink, BatchRef(boundary.source, 3, 3, 2), [result(0, "y"), result(0, "x")])
    settle(ledger, boundary, 0, 3, [RowOutcome(RowRef(2), "table", Outcome.REFUSED, "no")])
    bring = feedback(graph, boundary, ledger)
    real, left = ledger.release, [1]

    def full(*args: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise StateError("no room")
        return real(*args)

    for told in (0, 1):
        with monkeypatch.context() as patch:
            patch.setattr(ledger, "release", full)
            left[0] = told
            bring.tend()
    bring.tend()
    assert ledger.open_batches(boundary.source) == []
    assert [one.row.sequence for one in ledger.exceptions(boundary.source, 0, 3)] == [2], "by the second"
    assert bring.needed_from() > 3
    bring.close()


def test_results_are_recognised_until_spark_has_committed_their_batch(tmp_path: Path, ledger: Ledger) -> None:
    graph, boundary = pipeline(tmp_path, "save_point")
    closed, uncommitted = BatchRef(boundary.source, 1, 1, 1), [True]
    place = buffer_place(graph, boundary.results.source)
    put(place, boundary.results.sink, closed, [result(0, "x")])
    settle(ledger, boundary, 0, 1, [])
    bring = feedback(graph, boundary, ledger, lambda batch: uncommitted[0] and batch == closed)
    bring.tend()
    put(
        place, boundary.results.sink, closed, [result(0, "x")]
    )  # Spark was killed, and brings the batch again
    assert LogReader(place.log).head() == 1
    uncommitted[0] = False
    bring.tend()
    assert bring.needed_from() > 1
    bring.close()


def test_rows_that_wait_for_their_windows_never_keep_those_out_that_close_them(tmp_path: Path) -> None:
    graph, boundary = pipeline(tmp_path, "delivered")
    sources = [node.config for node in graph.sources.values() if isinstance(node.config, SourceConfig)]
    assert boundary.handover(graph).max_bytes > 1000 * max(config.log.max_bytes for config in sources)
    graph, boundary = pipeline(tmp_path, "save_point")
    assert boundary.handover(graph).max_bytes == 1024**3
    buffers = read_buffers(pipeline(tmp_path, "delivered")[0], Ledger(tmp_path / "ledger.db"))
    assert all(buffer.max_bytes is None or buffer.max_bytes < 2**40 for buffer in buffers.values())


def test_a_key_of_minus_zero_finds_the_result_that_spark_calls_zero(tmp_path: Path, ledger: Ledger) -> None:
    graph, boundary = pipeline(tmp_path, "delivered")
    rows = [{**row(0, None), "message_id": key} for key in (0.0, -0.0)]
    put(buffer_place(graph, boundary.source), boundary.sink, BatchRef("incoming", 0, 9), rows)
    wait(ledger, boundary, 2)
    closed = BatchRef(boundary.source, 2, 2, 1)
    results = [{**result(0, None), "message_id": 0.0}]
    put(buffer_place(graph, boundary.results.source), boundary.results.sink, closed, results)
    settle(ledger, boundary, 0, 1, [])
    bring = feedback(graph, boundary, ledger)
    bring.tend()
    assert ledger.open_batches(boundary.source) == []
    bring.close()


SAME = [
    (Decimal("12345678901234567890.1"), Decimal("12345678901234567890.2")),
    (Decimal("0.10"), Decimal("0.11")),
    (2**53, 2**53 + 1),
    (0.1, 0.1 + 2**-56),
    (float("nan"), float("inf")),
    (True, False),
    (b"\x00", b"\x00\x00"),
    (datetime(2020, 1, 1, 0, 0, 0, 1), datetime(2020, 1, 1, 0, 0, 0, 2)),
    (datetime(2020, 1, 1, 0, 0, 0, 1, UTC), datetime(2020, 1, 1, tzinfo=UTC)),
    (date(2020, 1, 1), None),
    ("e\u0301", "\u00e9"),
    ("\u2028", "\x00"),
    ("NaN", "null"),
]


@pytest.mark.parametrize("keys", SAME, ids=repr)
def test_keys_of_any_type_are_not_taken_for_each_other(
    tmp_path: Path, ledger: Ledger, keys: tuple[Any, Any]
) -> None:
    graph, boundary = pipeline(tmp_path, "delivered")
    rows = [{**row(0, None), "message_id": key} for key in keys]
    put(buffer_place(graph, boundary.source), boundary.sink, BatchRef("incoming", 0, 9), rows)
    wait(ledger, boundary, 2)
    closed = BatchRef(boundary.source, 2, 2, 1)
    results = [{**result(0, None), "message_id": key} for key in reversed(keys)]
    put(buffer_place(graph, boundary.results.source), boundary.results.sink, closed, results)
    refused = RowOutcome(RowRef(0), "table", Outcome.REFUSED, "no")
    settle(ledger, boundary, 0, 2, [refused])
    bring = feedback(graph, boundary, ledger)
    bring.tend()
    assert ledger.open_batches(boundary.source) == []
    assert [one.row.sequence for one in ledger.exceptions(boundary.source, 0, 2)] == [1]
    bring.close()
