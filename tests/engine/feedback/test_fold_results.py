"""Rows that wait for the result they were folded into hear what became of it, and no others hear of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyroaring import BitMap64

from signoff import load
from signoff.engine.feedback.results import build_result_feedback
from signoff.engine.split.boundaries import buffer_place
from signoff.engine.split.division import all_boundaries
from signoff.engine.split.stateful import FoldBoundary
from signoff.ledger.batch_state import Done, HandedOn
from signoff.ledger.ledger import Ledger
from signoff.ledger.outcome import Outcome, RowOutcome, RowRef
from signoff.log import LogReader
from signoff.sinks.contract import BatchRef, Part

PIPELINE = """
name: orders
sources:
  incoming: {type: files, path: "./in/*.jsonl"}
transforms:
  orders: {type: fold, input: incoming, keys: [message_id], timeout: 1m, acknowledge: delivered}
sinks:
  table: {type: sqlite, input: orders, path: ./out.db, table: orders}
"""


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger(tmp_path / "ledger.db") as found:
        yield found


def wait(ledger: Ledger, boundary: FoldBoundary, start: int, end: int) -> None:
    """The rows of a batch wait for results."""
    sink, rows = boundary.results.sink, BitMap64(range(start, end))
    ledger.open_batch(boundary.source, start, end, [sink])
    state = HandedOn(rows, attempts=1)
    ledger.record(
        boundary.source, start, end, delivered=BitMap64(), outcomes=[], sinks={sink: state}, owed=rows
    )  # fmt: skip


def test_rows_of_several_batches_are_settled_by_the_result_that_names_them(
    tmp_path: Path, ledger: Ledger
) -> None:
    file = tmp_path / "orders.yaml"
    file.write_text(PIPELINE)
    graph = load(file)
    part, boundary = next(
        (part, each) for part, each in all_boundaries(graph) if isinstance(each, FoldBoundary)
    )
    wait(ledger, boundary, 0, 4)
    wait(ledger, boundary, 4, 6)
    sink = boundary.results.handover(part).build(tmp_path)
    batch = BatchRef(boundary.source, 4, 6)
    writer = sink.open(Part(batch, 0, 0))
    rows = {"event_id": ["orders/0/~a", "orders/1/~b"], "_origin": [[0, 2, 5], [1]], "payload": ["{}", "{}"]}
    writer.write(pa.RecordBatch.from_pydict(rows))
    sink.commit(batch, [writer.close() or b""])
    sink.release()
    log = LogReader(buffer_place(graph, boundary.results.source).log)
    assert [event["message_id"] for event in log.lookup([0, 1]).values()] == rows["event_id"]

    front: Any = SimpleNamespace(comes_again=lambda _: False, look_again=lambda start: None)
    behind: Any = SimpleNamespace(needed_elsewhere=[])
    (bring,) = build_result_feedback(graph, ledger, {boundary.source: front, boundary.results.source: behind})
    bring.tend()
    assert [known.owed for known in ledger.open_batches(boundary.source)] == [
        BitMap64(range(4)),
        BitMap64([4, 5]),
    ]
    refused = RowOutcome(RowRef(1), "table", Outcome.DEAD_LETTERED, "no")
    ledger.open_batch(boundary.results.source, 0, 2, ["table"])
    ledger.record(
        boundary.results.source, 0, 2, delivered=BitMap64([0]), outcomes=[refused],
        sinks={"table": Done()}, owed=BitMap64(),
    )  # fmt: skip
    bring.tend()
    assert [known.owed for known in ledger.open_batches(boundary.source)] == [BitMap64([3]), BitMap64([4])]
    assert [one.row.sequence for one in ledger.exceptions(boundary.source, 0, 6)] == [1]
    bring.close()
