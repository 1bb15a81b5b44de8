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
from signoff.engine.division import all_joints
from signoff.engine.joints import FoldJoint, buffer_place, handover
from signoff.engine.returns import build_returns
from signoff.ledger.ledger import Ledger
from signoff.ledger.outcome import Outcome, RowOutcome, RowRef, SinkState
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


def wait(ledger: Ledger, joint: FoldJoint, start: int, end: int) -> None:
    """The rows of a batch wait for results."""
    sink, rows = joint.results.sink, BitMap64(range(start, end))
    ledger.open_batch(joint.source, start, end, [sink])
    state = SinkState(done=False, attempts=1, owed=(), handed=rows)
    ledger.record(
        joint.source, start, end, delivered=BitMap64(), outcomes=[], sinks={sink: state}, owed=rows
    )  # fmt: skip


def test_rows_of_several_batches_are_settled_by_the_result_that_names_them(
    tmp_path: Path, ledger: Ledger
) -> None:
    file = tmp_path / "orders.yaml"
    file.write_text(PIPELINE)
    graph = load(file)
    part, joint = next((part, each) for part, each in all_joints(graph) if isinstance(each, FoldJoint))
    wait(ledger, joint, 0, 4)
    wait(ledger, joint, 4, 6)
    sink = handover(part, joint.results).build(tmp_path)
    batch = BatchRef(joint.source, 4, 6)
    writer = sink.open(Part(batch, 0, 0))
    rows = {"event_id": ["orders/0/~a", "orders/1/~b"], "_origin": [[0, 2, 5], [1]], "payload": ["{}", "{}"]}
    writer.write(pa.RecordBatch.from_pydict(rows))
    sink.commit(batch, [writer.close() or b""])
    sink.release()
    log = LogReader(buffer_place(graph, joint.results.source).log)
    assert [event["message_id"] for event in log.lookup([0, 1]).values()] == rows["event_id"]

    front: Any = SimpleNamespace(comes_again=lambda _: False, look_again=lambda start: None)
    behind: Any = SimpleNamespace(needed_elsewhere=[])
    (bring,) = build_returns(graph, ledger, {joint.source: front, joint.results.source: behind})
    bring.tend()
    assert [known.owed for known in ledger.open_batches(joint.source)] == [
        BitMap64(range(4)),
        BitMap64([4, 5]),
    ]
    refused = RowOutcome(RowRef(1), "table", Outcome.DEAD_LETTERED, "no")
    ledger.open_batch(joint.results.source, 0, 2, ["table"])
    ledger.record(
        joint.results.source, 0, 2, delivered=BitMap64([0]), outcomes=[refused],
        sinks={"table": SinkState(done=True)}, owed=BitMap64(),
    )  # fmt: skip
    bring.tend()
    assert [known.owed for known in ledger.open_batches(joint.source)] == [BitMap64([3]), BitMap64([4])]
    assert [one.row.sequence for one in ledger.exceptions(joint.source, 0, 6)] == [1]
    bring.close()
