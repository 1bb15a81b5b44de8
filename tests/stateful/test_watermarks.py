"""Time goes forwards only, is the same whenever a batch is done again, and waits for every open batch."""

from __future__ import annotations

import inspect
import time
from pathlib import Path

import pytest

from signoff.sinks.contract import BatchRef
from signoff.stateful.watermarks import Seen, Watermarks
from signoff.transforms.window.watermark_rule import WatermarkRule
from tests.clock import Clock

SECOND = 1_000_000


def batch(start: int, source: str = "a", replay: int = 0) -> BatchRef:
    return BatchRef(source, start, start + 10, replay)


def seen(latest: int, tail: tuple[tuple[int, int], ...] = ()) -> Seen:
    return Seen(latest * SECOND, tuple((n, t * SECOND) for n, t in tail), (latest + 60) * SECOND)


def marks_at(
    tmp_path: Path, progress: WatermarkRule | None = None, sources: str = "a", clock: Clock | None = None
) -> Watermarks:
    return Watermarks(
        tmp_path / "marks.db",
        progress or WatermarkRule(10 * SECOND),
        sources.split(),
        clock=clock or Clock(0.0),
    )


def do(marks: Watermarks, start: int, said: Seen, source: str = "a") -> int | None:
    """A batch from beginning to end; returns the mark it was stamped with."""
    stamp = marks.stamp(batch(start, source))
    marks.saw(batch(start, source), said)
    marks.close(batch(start, source))
    told(marks)
    return stamp


def told(marks: Watermarks, **taken: int) -> int | None:
    """What Spark is told now; None if nothing new. `taken`: of each source."""
    marks.advance(taken)
    if (mark := marks.to_tell()) is not None:
        marks.tell(mark)
    return mark


def test_the_mark_follows_the_latest_event_and_never_goes_back(tmp_path: Path) -> None:
    marks = marks_at(tmp_path)
    assert marks.mark is None
    assert do(marks, 0, seen(100)) is None
    assert marks.mark == 90 * SECOND
    assert do(marks, 10, seen(50)) == 90 * SECOND
    assert marks.mark == 90 * SECOND
    assert marks_at(tmp_path).mark == 90 * SECOND


def test_a_batch_keeps_its_stamp_whenever_it_is_done_again(tmp_path: Path) -> None:
    marks = marks_at(tmp_path)
    do(marks, 0, seen(100))
    assert marks.stamp(batch(10)) == 90 * SECOND
    do(marks, 20, seen(500))
    assert marks_at(tmp_path).stamp(batch(10)) == 90 * SECOND
    assert marks.stamp_at("a", 15) == 90 * SECOND


def test_the_mark_does_not_pass_the_stamp_of_an_open_batch(tmp_path: Path) -> None:
    marks = marks_at(tmp_path)
    marks.stamp(batch(0))
    do(marks, 10, seen(100))
    assert marks.told is None, "rows of the first batch may be of any time"
    marks.close(batch(0))
    assert told(marks) == 90 * SECOND


def test_batches_of_several_sources_that_never_end_all_at_once_do_not_hold_time_up(tmp_path: Path) -> None:
    marks = marks_at(tmp_path, sources="a b")
    marks.stamp(batch(0, "a"))
    for number in range(1, 4):
        marks.stamp(batch(number * 10, "b"))
        do_rest(marks, batch((number - 1) * 10, "a"), seen(100 * number))
        marks.stamp(batch(number * 10, "a"))
        do_rest(marks, batch(number * 10, "b"), seen(100 * number))
    assert marks.told == 190 * SECOND, "as far as the stamp of the batch that is open"


def do_rest(marks: Watermarks, ref: BatchRef, said: Seen) -> None:
    marks.saw(ref, said)
    marks.close(ref)
    told(marks)


def test_a_batch_that_begins_while_spark_is_being_told_knows_what_it_is_told(tmp_path: Path) -> None:
    marks = marks_at(tmp_path)
    marks.saw(batch(0), seen(100))
    marks.advance()
    mark = marks.to_tell()
    assert marks.stamp(batch(10)) == mark == 90 * SECOND
    marks.close_store()  # and killed before it is noted that the mark is in the log
    again = marks_at(tmp_path, WatermarkRule(3600 * SECOND))
    assert again.stamp(batch(20)) == 90 * SECOND, "whatever time would say now"


def test_what_was_late_is_late_again_for_a_sink_that_gets_the_batch_after_the_window(tmp_path: Path) -> None:
    marks = marks_at(tmp_path)
    assert do(marks, 0, seen(100)) is None
    assert marks.mark == 90 * SECOND
    assert marks.stamp_at("a", 5) is None
    marks.forget(batch(0))
    assert marks.stamp_at("a", 5) == 90 * SECOND, "nobody gets it again"


def test_last_events_may_be_asked_for_later(tmp_path: Path) -> None:
    do(marks_at(tmp_path), 0, seen(100))
    marks = marks_at(tmp_path, WatermarkRule(0, last_events=2))
    assert told(marks) is None
    do(marks, 10, seen(200, ((10, 200),)))
    assert marks.mark == 200 * SECOND


def test_what_an_earlier_run_left_open_is_closed_but_for_unfinished_batches(tmp_path: Path) -> None:
    marks = marks_at(tmp_path)
    do(marks, 0, seen(100))
    for start in (10, 20):
        marks.stamp(batch(start))
    marks.stamp(batch(10, replay=7))
    marks.saw(batch(10), seen(300))
    marks.forget_others("a", [batch(20)])
    assert told(marks) is None
    marks.close(batch(20))
    assert told(marks) == 290 * SECOND


def test_a_batch_of_a_source_that_was_taken_out_of_the_pipeline_is_not_waited_for(tmp_path: Path) -> None:
    before = marks_at(tmp_path, sources="a b")
    do(before, 0, seen(100))
    before.stamp(batch(0, "b"))
    marks = marks_at(tmp_path)
    assert told(marks) is None
    marks.forget_others("a", [])
    assert told(marks) == 90 * SECOND


def test_a_batch_that_is_told_of_twice_changes_nothing(tmp_path: Path) -> None:
    marks = marks_at(tmp_path, WatermarkRule(0, last_events=3))
    for _ in range(2):
        marks.saw(batch(0), seen(9, ((0, 5), (1, 9), (2, 7))))
    assert told(marks) == 5 * SECOND


def test_the_oldest_of_the_last_events_is_the_mark(tmp_path: Path) -> None:
    marks = marks_at(tmp_path, WatermarkRule(2 * SECOND, last_events=3))
    do(marks, 0, seen(9, ((7, 5), (8, 9), (9, 7))))
    assert marks.mark == 3 * SECOND
    do(marks, 10, seen(20, ((10, 20),)))  # the last three are now 9, 7 and 20
    assert marks.mark == 5 * SECOND


def test_the_slowest_source_decides(tmp_path: Path) -> None:
    marks = marks_at(tmp_path, sources="a b")
    do(marks, 0, seen(100))
    assert marks.mark is None, "nothing is known of b"
    do(marks, 0, seen(40), "b")
    assert marks.mark == 30 * SECOND


def test_a_source_that_is_silent_for_long_is_not_waited_for(tmp_path: Path) -> None:
    clock = Clock(1000.0)
    marks = marks_at(tmp_path, WatermarkRule(10 * SECOND, idle_after=30), "a b", clock)
    do(marks, 0, seen(100))
    clock.now += 20
    do(marks, 10, seen(110))
    assert marks.mark is None and marks.silent() == {}
    clock.now += 20
    assert marks.silent().keys() == {"b"}
    assert told(marks) is None, "events of b may be on their way"
    assert told(marks, b=0) == 100 * SECOND


def test_a_source_with_a_batch_under_way_is_not_silent_however_long_that_takes(tmp_path: Path) -> None:
    clock = Clock(1000.0)
    marks = marks_at(tmp_path, WatermarkRule(10 * SECOND, idle_after=30), "a b", clock)
    do(marks, 0, seen(20), "b")
    marks.stamp(batch(10, "b"))
    clock.now += 40
    do(marks, 0, seen(100))
    assert told(marks, b=20) is None
    assert marks.mark == 10 * SECOND, "the next batch of b would find its events late"


def test_a_source_whose_events_all_go_elsewhere_is_silent_however_busy_it_is(tmp_path: Path) -> None:
    clock = Clock(1000.0)
    marks = marks_at(tmp_path, WatermarkRule(10 * SECOND, idle_after=30), clock=clock)
    do(marks, 0, seen(100))
    clock.now += 31
    open_batch = marks.stamp(batch(20))
    assert told(marks, a=20) is None, "Spark knows no more than the batch that is open"
    assert marks.mark == 160 * SECOND and open_batch == 90 * SECOND
    marks.close(batch(20))
    assert told(marks) == 160 * SECOND


def test_open_windows_are_closed_when_no_event_comes(tmp_path: Path) -> None:
    clock = Clock(1000.0)
    marks = marks_at(tmp_path, WatermarkRule(10 * SECOND, idle_after=30), clock=clock)
    do(marks, 0, seen(100))
    assert marks.open_windows
    clock.now += 29
    assert told(marks, a=20) is None
    clock.now += 2
    assert told(marks) is None, "events are on their way"
    marks.stamp(batch(10))
    assert told(marks, a=20) is None, "a batch is open"
    marks.close(batch(10))
    mark = told(marks, a=20)
    assert mark == 160 * SECOND
    assert not marks.open_windows
    assert not marks.all_given
    marks.gave(mark)
    assert marks.all_given


def test_a_run_that_begins_waits_for_events_before_it_closes_anything(tmp_path: Path) -> None:
    clock = Clock(1000.0)
    do(marks_at(tmp_path, WatermarkRule(0, idle_after=30), clock=clock), 0, seen(100))
    clock.now += 3600
    again = marks_at(tmp_path, WatermarkRule(0, idle_after=30), clock=clock)
    assert told(again, a=20) is None
    clock.now += 31
    assert told(again, a=20) == 160 * SECOND


def test_a_mark_is_a_whole_number_of_milliseconds(tmp_path: Path) -> None:
    marks = marks_at(tmp_path, WatermarkRule(0))
    marks.saw(batch(0), Seen(1_234_567, (), 2_000_000))
    assert told(marks) == 1_234_000


@pytest.mark.parametrize("folded", [False, True])
def test_late_events_are_counted_once_by_keys(tmp_path: Path, folded: bool) -> None:
    marks = marks_at(tmp_path)
    marks.count_late(batch(0), {'{"sensor":303}': 1})  # and killed: a step in front says otherwise next time
    for _ in range(2):
        marks.count_late(batch(0), {'{"sensor":121}': 3, '{"sensor":115}': 1})
    marks.count_late(batch(10), {'{"sensor":121}': 2})
    if folded:
        marks.fold_late("a", 10)
        marks.fold_late("a", 10)
    assert marks.late() == {'{"sensor":121}': 5, '{"sensor":115}': 1}


def test_silence_is_measured_by_a_clock_that_nobody_can_set() -> None:
    assert inspect.signature(Watermarks).parameters["clock"].default is time.monotonic


def test_a_new_process_waits_anew_whatever_its_clock_shows(tmp_path: Path) -> None:
    """After a restart of the machine the monotonic clock begins anew."""
    progress = WatermarkRule(0, idle_after=60.0)
    do(marks_at(tmp_path, progress, clock=Clock(1_000_000.0)), 0, seen(100))
    clock = Clock(5.0)
    again = marks_at(tmp_path, progress, clock=clock)
    assert again.silent() == {}
    clock.now += 61
    assert again.silent() == {"a": 5.0}
