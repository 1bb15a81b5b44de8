"""When the time of an event is up: never early, up to the cap, also after a restart, in little memory."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from signoff.errors import LogError
from signoff.intake.deadlines import MOST_AT_ONCE, MOST_ENTRIES, Deadlines, Received
from signoff.log import LogReader, LogWriter
from signoff.log.event_schema import EVENT_SCHEMA
from signoff.pipeline.model import LogSettings

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)


def events(*ages_s: float) -> pa.RecordBatch:
    rows = [{"payload": b"x", "received_at": NOW - timedelta(seconds=age)} for age in ages_s]
    return pa.RecordBatch.from_pylist(rows, schema=EVENT_SCHEMA)


def logged(directory: Path, *batches: pa.RecordBatch) -> LogReader:
    writer = LogWriter(directory, LogSettings())
    for batch in batches:
        writer.append(batch)
        writer.sync()
    writer.close()
    return LogReader(directory)


def at(now: float) -> Received:
    """A monotonic clock that shows this at `NOW`, and a time of day that nobody has set."""
    return lambda _, time_of_day: now - (NOW.timestamp() - time_of_day)


def fixed(within_s: float = 10.0) -> Deadlines:
    return Deadlines(within_s, None, 0.0)


def test_an_event_is_due_when_its_time_is_up_and_not_before() -> None:
    deadlines = fixed()
    deadlines.add(0, 5, received=100.0)
    deadlines.add(5, 2, received=103.0)
    assert list(deadlines.due(109.9)) == []
    assert deadlines.due(110.0) == range(5)
    assert deadlines.due(113.0) == range(7)
    deadlines.forget(5)
    assert deadlines.due(113.0) == range(5, 7)


def test_what_is_settled_is_forgotten() -> None:
    deadlines = fixed()
    deadlines.add(0, 10, received=0.0)
    deadlines.forget(4)
    assert deadlines.due(100.0) == range(4, 10)
    deadlines.forget(10)
    assert len(deadlines) == 0
    assert list(deadlines.due(100.0)) == []


def test_without_a_lease_progress_extends_nothing() -> None:
    deadlines = fixed()
    deadlines.add(0, 1, received=0.0)
    deadlines.progressed(9.0)
    assert deadlines.due(10.0) == range(1)


def test_progress_extends_the_deadline_up_to_the_cap_and_not_beyond() -> None:
    deadlines = Deadlines(10.0, 25.0, now=0.0)
    deadlines.add(0, 1, received=0.0)
    deadlines.progressed(9.0)
    assert list(deadlines.due(18.9)) == []
    deadlines.progressed(18.0)
    assert list(deadlines.due(24.9)) == []
    assert deadlines.due(25.0) == range(1), "28 would be ten seconds after the last progress"


def test_without_progress_a_lease_ends_when_the_time_is_up() -> None:
    deadlines = Deadlines(10.0, 25.0, now=0.0)
    deadlines.progressed(3.0)
    deadlines.add(0, 1, received=5.0)
    assert list(deadlines.due(14.9)) == []
    assert deadlines.due(15.0) == range(1)


def test_a_cap_that_is_shorter_than_the_time_does_not_shorten_it() -> None:
    deadlines = Deadlines(10.0, 5.0, now=0.0)
    deadlines.add(0, 1, received=0.0)
    assert list(deadlines.due(9.9)) == []
    assert deadlines.due(10.0) == range(1)


def test_so_many_at_a_time_and_the_rest_next() -> None:
    deadlines = fixed()
    deadlines.add(0, 3 * MOST_AT_ONCE, received=0.0)
    assert deadlines.due(10.0) == range(MOST_AT_ONCE)
    deadlines.forget(MOST_AT_ONCE)
    assert deadlines.due(10.0) == range(MOST_AT_ONCE, 2 * MOST_AT_ONCE)


def test_a_million_group_commits_take_little_memory_and_none_of_them_is_early_or_long_late() -> None:
    deadlines = Deadlines(1.0, 1000.0, now=0.0)
    each_s = 1500.0 / 1_000_000
    for number in range(1_000_000):
        deadlines.add(number * 50, 50, received=number * each_s)
    assert len(deadlines) <= MOST_ENTRIES
    assert len(deadlines) * sys.getsizeof(deadlines._entries[0]) < 2 * 1024**2
    deadlines.progressed(1500.0)
    while up := deadlines.due(1400.0):
        last = up[-1] // 50 * each_s
        assert last + 1000.0 <= 1400.0, "this is before its cap"
        deadlines.forget(up.stop)
    assert last + 1000.0 > 1399.0, "the next one is late"


@given(
    gaps=st.lists(st.tuples(st.integers(1, 100), st.floats(0, 30)), min_size=1, max_size=60),
    progress=st.lists(st.floats(0, 500), max_size=5),
    cap=st.none() | st.floats(1, 200),
    now=st.floats(0, 1000),
)
def test_no_event_is_due_before_its_deadline_or_long_after(
    gaps: list[tuple[int, float]], progress: list[float], cap: float | None, now: float
) -> None:
    within = 20.0
    deadlines = Deadlines(within, cap, now=0.0)
    received, first, times = 0.0, 0, list[float]()
    for count, gap in gaps:
        received += gap
        deadlines.add(first, count, received)
        times += [received] * count
        first += count
    last = max([0.0, *progress])
    deadlines.progressed(last)
    limit = None if cap is None else max(cap, within)

    def deadline(time: float) -> float:
        return time + within if limit is None else min(max(time, last) + within, time + limit)

    due = deadlines.due(now)
    assert due.start == 0
    assert all(deadline(time) <= now for time in times[: due.stop])
    assert all(deadline(time) + within / 100 >= now for time in times[due.stop :])


# -- after a restart


def test_after_a_restart_the_times_are_found_in_the_log(tmp_path: Path) -> None:
    log = logged(tmp_path, events(50, 50, 9), events(5), events(1))
    deadlines = fixed()
    deadlines.recall(log, 1, now=1000.0, received=at(1000.0))
    assert list(deadlines.due(1000.9)) == []
    assert deadlines.due(1001.0) == range(1, 3)
    assert deadlines.due(1005.0) == range(1, 4)
    assert deadlines.due(1009.0) == range(1, 5)


def test_what_is_too_old_after_a_restart_is_due_at_once(tmp_path: Path) -> None:
    deadlines = fixed()
    deadlines.recall(logged(tmp_path, events(3600, 3600)), 0, now=5.0, received=at(5.0))
    assert deadlines.due(5.0) == range(2)


def test_a_start_counts_as_progress_where_there_is_a_lease_but_the_cap_holds(tmp_path: Path) -> None:
    deadlines = Deadlines(10.0, 100.0, now=1000.0)
    deadlines.recall(logged(tmp_path, events(99), events(50)), 0, now=1000.0, received=at(1000.0))
    assert list(deadlines.due(1000.9)) == []
    assert deadlines.due(1001.0) == range(1)
    assert deadlines.due(1010.0) == range(2)


def test_an_event_from_the_future_has_its_whole_time(tmp_path: Path) -> None:
    """Somebody has set the clock back."""
    deadlines = fixed()
    deadlines.recall(logged(tmp_path, events(-3600)), 0, now=5.0, received=at(5.0))
    assert list(deadlines.due(14.9)) == []
    assert deadlines.due(15.0) == range(1)


def test_an_event_whose_age_nobody_knows_has_its_whole_time(tmp_path: Path) -> None:
    """The machine was restarted, and its clock may be wrong."""
    deadlines = fixed()
    deadlines.recall(logged(tmp_path, events(3600)), 0, now=5.0, received=lambda *_: None)
    assert list(deadlines.due(14.9)) == []
    assert deadlines.due(15.0) == range(1)


def test_a_log_that_is_empty_or_all_settled_has_no_deadlines(tmp_path: Path) -> None:
    deadlines = fixed()
    deadlines.recall(LogReader(tmp_path / "none"), 0, now=5.0, received=at(5.0))
    deadlines.recall(logged(tmp_path / "log", events(5, 5)), 2, now=5.0, received=at(5.0))
    assert len(deadlines) == 0


def test_a_log_that_is_trimmed_while_it_is_read_is_read_again(tmp_path: Path) -> None:
    class Trimmed(LogReader):
        reads = 0

        def read(self, start: int, end: int, columns: object = None) -> Iterator[tuple[int, pa.RecordBatch]]:
            self.reads += 1
            yield from super().read(start, start + 1, ("received_at",))
            if self.reads < 3:
                raise LogError("[log-trimmed] gone this moment")
            yield from super().read(start + 1, end, ("received_at",))

    logged(tmp_path, events(1), events(1))
    deadlines = fixed()
    deadlines.recall(Trimmed(tmp_path), 0, now=5.0, received=at(5.0))
    assert deadlines.due(100.0) == range(2)
    log = Trimmed(tmp_path)
    log.reads = -100
    with pytest.raises(LogError):
        deadlines.recall(log, 0, now=5.0, received=at(5.0))
