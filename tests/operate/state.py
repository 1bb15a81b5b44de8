"""A state directory as a run leaves it, made by the ledger's own API."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

from signoff.ledger import DeadLetter, DeadLetters, Ledger, RowRef
from signoff.ledger.batch_state import OwesRows
from signoff.log import LogWriter
from signoff.log.event_schema import EVENT_SCHEMA
from signoff.operate.loading import load_for_reading
from signoff.pipeline.graph import Graph
from signoff.pipeline.model import LogSettings
from tests.ledger.attempts import attempt

PIPELINE = """
name: alarms
sources:
  incoming: {type: files, path: "./in/*.jsonl"}
transforms:
  failures: {type: filter, input: incoming, where: alarmId = 303}
sinks:
  table: {type: sqlite, input: failures, path: ./out.db, table: alarms}
  desk: {type: http, input: incoming, url: "https://desk:hunter2@example.com/?token=hunter3"}
"""


def fill(folder: Path, text: str = PIPELINE) -> Graph:
    """Ten events: 1 dead-lettered, 2 refused, 3 dropped, 6 owed by `table`, 8 and 9 not in a batch."""
    file = folder / "alarms.yaml"
    file.write_text(text)
    graph = load_for_reading(file)
    log = LogWriter(graph.state / "log" / "incoming", LogSettings())
    rows = [
        {"payload": b'{"n": %d}' % n, "received_at": datetime(2026, 1, 1, tzinfo=UTC), "message_id": f"m-{n}"}
        for n in range(10)
    ]
    log.append(pa.RecordBatch.from_pylist(rows, schema=EVENT_SCHEMA))
    log.sync()
    log.close()
    with (
        Ledger(graph.state / "ledger.db", now=lambda: 1000.0) as ledger,
        DeadLetters(graph.state / "dead_letters.db", now=lambda: 1000.0) as letters,
    ):
        letters.add([DeadLetter("incoming/1", "table", "no such column", b'{"n": 1}', {"file": "a"})])
        attempt(ledger, 0, 4, delivered=[0], dead_lettered=[1], refused=[2], rows={"table": 1})
        owing = OwesRows((RowRef(6),), attempts=3, error="database is locked", since=900.0)
        attempt(ledger, 4, 8, delivered=[4, 5, 6, 7], owed=[6], sinks={"table": owing})
    return graph
