"""When a window need not wait for a source any more, however busy that is with events that go elsewhere."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
from pyroaring import BitMap64

from signoff.engine.state_queries.window_query import Silence, Stage
from signoff.ledger.batch_state import HandedOn, OwesAll, OwesRows, Wait
from signoff.ledger.ledger import Ledger
from signoff.ledger.outcome import RowRef
from signoff.ledger.sequences import from_range
from signoff.link.handover import as_events
from signoff.log import LogReader, LogWriter
from signoff.pipeline.model import LogSettings
from signoff.sinks.contract import BatchRef
from signoff.stateful.watermarks import Seen, Watermarks
from signoff.transforms.window.watermark_rule import WatermarkRule
from tests.clock import Clock


def events(number: int) -> pa.RecordBatch:
    return as_events(pa.array([b"{}"] * number), pa.array(["x"] * number), pa.nulls(number, pa.int64()))


def test_what_had_come_when_the_window_was_silent_for_long_enough_must_be_taken_and_no_more(
    tmp_path: Path,
) -> None:
    clock = Clock(1000.0)
    marks = Watermarks(tmp_path / "marks.db", WatermarkRule(0, idle_after=30), ["a"], clock=clock)
    ledger = Ledger(tmp_path / "ledger.db")
    log = LogWriter(tmp_path / "log", LogSettings())
    query: Any = SimpleNamespace(source="a", log=LogReader(tmp_path / "log"))
    window: Any = SimpleNamespace(marks=marks)
    silence = Silence(window, [query], ledger)

    def come(number: int) -> None:
        log.append_all([events(number)])
        log.sync()

    def take(start: int, end: int) -> None:
        ledger.open_batch("a", start, end, ["w.state"])

    come(10)
    take(0, 10)
    marks.saw(BatchRef("a", 0, 10), Seen(5, (), 60))
    come(5)
    assert silence.taken() == {}, "it is not silent"
    clock.now += 31
    assert silence.taken() == {}, "five more had come"
    come(5)
    take(10, 15)
    assert silence.taken() == {"a": 15}, "what has come since does not matter"
    marks.saw(BatchRef("a", 10, 15), Seen(6, (), 60))
    assert silence.taken() == {}
    clock.now += 31
    assert silence.taken() == {}, "it begins anew: there are twenty now"
    take(15, 20)
    assert silence.taken() == {"a": 20}
    come(5)
    clock.now += 1
    marks.saw(BatchRef("a", 15, 20), Seen(7, (), 60))
    clock.now += 31
    assert silence.taken() == {}, "heard and silent again since it was last asked"
    log.close()
    ledger.close()
    marks.close_store()


def test_a_source_that_is_held_back_is_not_silent_and_begins_to_be_when_it_is_let_go(tmp_path: Path) -> None:
    clock = Clock(1000.0)
    marks = Watermarks(tmp_path / "marks.db", WatermarkRule(0, idle_after=30), ["a"], clock=clock)
    ledger = Ledger(tmp_path / "ledger.db")
    log = LogWriter(tmp_path / "log", LogSettings())
    query: Any = SimpleNamespace(source="a", log=LogReader(tmp_path / "log"))
    window: Any = SimpleNamespace(marks=marks)
    reason = [""]
    silence = Silence(window, [query], ledger, held=lambda source: reason[0], clock=clock)
    log.append_all([events(10)])
    log.sync()
    ledger.open_batch("a", 0, 10, ["w.state"])
    marks.saw(BatchRef("a", 0, 10), Seen(5, (), 60))
    reason[0] = "the log is full"
    for _ in range(10):
        clock.now += 25
        assert silence.taken() == {}
    reason[0] = ""
    clock.now += 25
    assert silence.taken() == {}, "let go only now: its events are on their way"
    clock.now += 10
    assert silence.taken() == {"a": 10}
    log.close()
    ledger.close()
    marks.close_store()


def test_where_rows_come_from_another_log_what_was_in_that_must_have_come_through_first(
    tmp_path: Path,
) -> None:
    clock = Clock(1000.0)
    marks = Watermarks(
        tmp_path / "marks.db", WatermarkRule(0, idle_after=30), ["w.input.buffer"], clock=clock
    )
    ledger = Ledger(tmp_path / "ledger.db")
    logs = {name: LogWriter(tmp_path / name, LogSettings()) for name in ("a", "w.input.buffer")}
    runner = SimpleNamespace(steps={"once": None, "other": None}, follows=lambda step: step == "once")
    queries: dict[str, Any] = {
        name: SimpleNamespace(source=name, log=LogReader(tmp_path / name), runner=runner) for name in logs
    }
    window: Any = SimpleNamespace(marks=marks)
    way = {"w.input.buffer": [Stage(queries["a"], "w")]}
    silence = Silence(window, [queries["w.input.buffer"]], ledger, way)

    def come(source: str, number: int) -> None:
        logs[source].append_all([events(number)])
        logs[source].sync()

    come("a", 10)
    clock.now += 31
    assert silence.taken() == {}, "ten are on their way"
    ledger.open_batch("a", 0, 10, ["w", "other"])
    assert silence.taken() == {}, "they are only taken"
    come("w.input.buffer", 6)
    come("a", 1)
    handed = HandedOn(from_range(0, 6), attempts=1, since=0.0)
    # A duplicate that waits, perhaps for an event in the window, holds nothing open.
    duplicate = OwesRows((RowRef(7),), error="repeats a/0, which is not settled yet")
    ledger.record(
        "a", 0, 10, delivered=BitMap64(), outcomes=[], owed=from_range(0, 10),
        sinks={"w": handed, "other": OwesAll(attempts=1)}, waits={Wait("w", "once"): duplicate},
    )  # fmt: skip
    assert silence.taken() == {}, "they are in the second log, and nobody has taken them"
    ledger.open_batch("w.input.buffer", 0, 6, ["w.state"])
    assert silence.taken() == {"w.input.buffer": 6}, "that another sink owes, and more has come, is no matter"
    for log in logs.values():
        log.close()
    ledger.close()
    marks.close_store()
