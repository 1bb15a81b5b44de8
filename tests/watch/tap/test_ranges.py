"""Which events of a log a tap looks at, with a real log."""

from __future__ import annotations

from pathlib import Path

import pytest

from signoff.errors import EngineError
from signoff.ledger import Ledger
from signoff.log import LogWriter
from signoff.pipeline.model import LogSettings
from signoff.sources.events import event_batch, piece
from signoff.watch.tap.ranges import Ranges
from signoff.watch.tap.rows import TappedRow

SOURCE = "incoming"


def logged(state: Path, count: int) -> None:
    log = LogWriter(state / "log" / SOURCE, LogSettings())
    try:
        log.append(event_batch(piece([b"{}"] * count, list(range(count)), {})))
        log.sync()
    finally:
        log.close()


class Rows:
    """Every so-manieth event has a row; remembers what was asked for."""

    def __init__(self, every: int = 1) -> None:
        self.every, self.asked = every, list[tuple[int, int]]()

    def __call__(self, start: int, end: int) -> list[TappedRow]:
        self.asked.append((start, end))
        return [TappedRow(f"{SOURCE}/{n}", "passed") for n in range(start, end) if n % self.every == 0]


def numbers(rows: list[TappedRow]) -> list[int]:
    return [int(row.event_id.rpartition("/")[2]) for row in rows]


def test_the_newest_events_are_looked_at_and_older_ones_only_where_rows_are_missing(tmp_path: Path) -> None:
    logged(tmp_path, 5_000)
    many, few = Rows(), Rows(every=1_500)
    assert numbers(Ranges(tmp_path, SOURCE).take(many, 3)) == [4_997, 4_998, 4_999]
    assert many.asked == [(4_000, 5_000)]
    assert numbers(Ranges(tmp_path, SOURCE).take(few, 3)) == [1_500, 3_000, 4_500]
    assert few.asked == [(4_000, 5_000), (0, 4_000)]


def test_what_has_come_since_the_last_time_is_looked_at_once(tmp_path: Path) -> None:
    ranges, rows = Ranges(tmp_path, SOURCE), Rows()
    assert ranges.take(rows, 10) == [], "there is no log yet"
    logged(tmp_path, 4)
    assert numbers(ranges.take(rows, 10)) == [0, 1, 2, 3]
    assert ranges.take(rows, 10) == []
    logged(tmp_path, 2)
    assert numbers(ranges.take(rows, 10)) == [4, 5]
    assert rows.asked == [(0, 4), (4, 6)]


def test_steps_that_call_out_are_given_as_many_events_as_rows_are_wanted(tmp_path: Path) -> None:
    logged(tmp_path, 100)
    rows = Rows(every=7)
    ranges = Ranges(tmp_path, SOURCE, few=True)
    assert numbers(ranges.take(rows, 10)) == [91, 98]
    logged(tmp_path, 50)
    ranges.take(rows, 10)
    assert rows.asked == [(90, 100), (140, 150)]


def test_rows_that_are_made_of_a_batch_are_those_of_whole_batches(tmp_path: Path) -> None:
    logged(tmp_path, 10)
    with Ledger(tmp_path / "ledger.db") as ledger:
        ledger.open_batch(SOURCE, 0, 4, ["out"])
        ledger.open_batch(SOURCE, 4, 7, ["out"])
    rows = Rows()
    Ranges(tmp_path, SOURCE, whole_batches=True).take(rows, 2)
    assert rows.asked == [(4, 7)], "what is in no batch yet has no rows"


def test_a_segment_that_is_removed_meanwhile_is_no_failure(tmp_path: Path) -> None:
    logged(tmp_path, 5)
    tries = []

    def trimmed_once(start: int, end: int) -> list[TappedRow]:
        tries.append((start, end))
        if len(tries) == 1:
            raise EngineError("[log-trimmed] it is gone")
        return [TappedRow(f"{SOURCE}/{start}", "passed")]

    assert len(Ranges(tmp_path, SOURCE).take(trimmed_once, 1)) == 1

    def broken(start: int, end: int) -> list[TappedRow]:
        raise EngineError("the plan fails")

    with pytest.raises(EngineError, match="the plan fails"):
        Ranges(tmp_path, SOURCE).take(broken, 1)
