"""What is said of a sink that was not there before. Without Spark."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
from pyroaring import BitMap64

from signoff.engine.state_dir.new_sinks import newcomers
from signoff.ledger import Ledger
from signoff.ledger.batch_state import Done, OwesRows
from signoff.ledger.outcome import RowRef
from signoff.log import LogReader, LogWriter
from signoff.log.event_schema import EVENT_SCHEMA
from signoff.pipeline.model import LogSettings


def test_a_new_sink_gets_what_is_not_settled_and_hears_what_it_does_not_get(tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "log", LogSettings())
    rows = [{"payload": b"{}", "received_at": datetime(2026, 1, 1, tzinfo=UTC)} for _ in range(10)]
    log.append(pa.RecordBatch.from_pylist(rows, schema=EVENT_SCHEMA))
    log.sync()
    log.close()
    logs = {"incoming": LogReader(tmp_path / "log")}
    with Ledger(tmp_path / "ledger.db") as ledger:
        assert newcomers(ledger, logs, {"incoming": ["table"]}) == [], "all are new where nothing was settled"
        ledger.open_batch("incoming", 0, 6, ["table"])
        done = {"table": Done()}
        ledger.record(
            "incoming", 0, 6, delivered=BitMap64(range(6)), outcomes=[], sinks=done, owed=BitMap64()
        )
        assert newcomers(ledger, logs, {"incoming": ["table"]}) == []
        (said,) = newcomers(ledger, logs, {"incoming": ["table", "archive"]})
        assert said.startswith('"archive" is new: of incoming it gets the events that are not settled yet')
        assert "6 of the first 6 were settled without it, and 6 of them are still in the log" in said
        assert str(tmp_path / "log") in said
        # A batch that is open belongs to the new one as well, as run does it.
        ledger.open_batch("incoming", 6, 10, ["table"])
        again = ledger.open_batch("incoming", 6, 10, ["table", "archive"])
        assert not again.sinks["archive"].done
        assert newcomers(ledger, logs, {"incoming": ["table", "archive"]}) == [], "it is no longer new"


def test_events_behind_one_that_waits_are_counted_among_those_it_does_not_get(tmp_path: Path) -> None:
    logs = {"incoming": LogReader(tmp_path / "log")}
    with Ledger(tmp_path / "ledger.db") as ledger:
        ledger.open_batch("incoming", 0, 40, ["table"])
        owed, settled = BitMap64([0, 7]), BitMap64(range(40)) - BitMap64([0, 7])
        ledger.record(
            "incoming",
            0,
            40,
            delivered=settled,
            outcomes=[],
            sinks={"table": OwesRows((RowRef(0), RowRef(7)))},
            owed=owed,
        )
        (said,) = newcomers(ledger, logs, {"incoming": ["table", "archive"]})
        assert "38 of the first 40 were settled without it" in said
