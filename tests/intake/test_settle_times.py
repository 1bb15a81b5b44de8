"""The histogram of times from receipt to settled is that of the events, however they are settled."""

from __future__ import annotations

from bisect import bisect_left

from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from signoff.intake.settle_times import BOUNDS_S, MOST_ENTRIES, SettleTimes


@given(
    batches=st.lists(st.tuples(st.integers(1, 40), st.floats(0, 100)), min_size=1, max_size=8),
    data=st.data(),
)
def test_each_event_is_counted_once_with_its_own_time(
    batches: list[tuple[int, float]], data: st.DataObject
) -> None:
    times, received = SettleTimes(), {}
    clock = first = 0
    for count, pause in batches:
        clock += pause
        times.received(first, count, clock)
        received |= dict.fromkeys(range(first, first + count), clock)
        first += count
    expected, waiting = [0] * (len(BOUNDS_S) + 1), set(received)
    while waiting:
        told = data.draw(st.sets(st.sampled_from(sorted(waiting)), min_size=1))
        clock += data.draw(st.floats(0, 50))
        times.settled(BitMap64(told), clock)
        for event in told:
            expected[bisect_left(BOUNDS_S, clock - received[event])] += 1
        waiting -= told
        assert times.counts == expected
    assert len(times) == 0, "nothing is kept of what is settled"


def test_events_of_an_earlier_process_are_not_measured() -> None:
    times = SettleTimes()
    times.received(1000, 10, 5.0)
    times.settled(BitMap64(range(1010)), 6.0)
    assert sum(times.counts) == 10
    assert times.seconds == 10.0


def test_a_long_backlog_takes_bounded_memory_and_loses_no_event() -> None:
    times = SettleTimes()
    for number in range(4 * MOST_ENTRIES):
        times.received(number, 1, float(number))
    assert len(times) <= MOST_ENTRIES
    times.settled(BitMap64(range(4 * MOST_ENTRIES)), 4.0 * MOST_ENTRIES)
    assert sum(times.counts) == 4 * MOST_ENTRIES
