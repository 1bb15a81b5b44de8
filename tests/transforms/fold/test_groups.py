"""When groups of events end, what comes out of them, and how the driver knows which are open."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from signoff.ledger.outcome import EventId
from signoff.stateful.open_groups import OpenGroups
from signoff.transforms.fold.groups import NEVER, Arrival, GroupChange, Head, Rules, expire, fold


class Memory:
    """What is kept of one key, and when it is to be woken."""

    def __init__(self) -> None:
        self._head: Head | None = None
        self._events: list[tuple[int, str]] = []
        self.timers: set[int] = set()

    def head(self) -> Head | None:
        return self._head

    def events(self) -> Iterable[tuple[int, str]]:
        return list(self._events)

    def keep(self, head: Head, events: Sequence[tuple[int, str]]) -> None:
        self._head = head
        self._events += events

    def clear(self) -> None:
        self._head, self._events = None, []

    def wake_at(self, deadline: int) -> None:
        self.timers.add(deadline)

    def let_sleep(self, deadline: int) -> None:
        self.timers.remove(deadline)


def arrivals(*numbers: int, ends: Iterable[int] = ()) -> list[Arrival]:
    return [Arrival(n, f"incoming/{n}", json.dumps({"n": n}), n in ends, n * 1_000_000) for n in numbers]


def results(changes: Iterable[GroupChange]) -> list[tuple[list[int], str]]:
    """The events of each result, and what ended it."""
    found = [json.loads(one.payload) for one in changes if one.payload is not None]
    return [([event["n"] for event in group["events"]], group["ended_by"]) for group in found]


def test_a_group_ends_with_its_number_of_events_and_the_next_one_begins() -> None:
    kept, rules = Memory(), Rules("orders", 3, None)
    assert results(fold(rules, kept, arrivals(0, 1), 0)) == []
    assert results(fold(rules, kept, arrivals(2, 3, 4, 5, 6), 0)) == [
        ([0, 1, 2], "count"),
        ([3, 4, 5], "count"),
    ]
    assert [number for number, _ in kept.events()] == [6]


def test_the_event_that_ends_a_group_is_part_of_it() -> None:
    kept, rules = Memory(), Rules("orders", None, None)
    changes = list(fold(rules, kept, arrivals(0, 1, 2, 3, ends=[1, 3]), 0))
    assert results(changes) == [([0, 1], "until"), ([2, 3], "until")]
    assert kept.head() is None


def test_events_are_folded_in_the_order_of_the_log_however_they_come() -> None:
    assert results(fold(Rules("orders", 3, None), Memory(), arrivals(2, 0, 1), 0)) == [([0, 1, 2], "count")]


def test_a_group_is_over_at_its_deadline_also_if_events_come_before_the_timer() -> None:
    kept, rules = Memory(), Rules("orders", None, 1000)
    list(fold(rules, kept, arrivals(0), 5000))
    assert kept.timers == {6000}
    assert list(expire(rules, kept, 5999)) == []
    assert results(fold(rules, kept, arrivals(1), 6500)) == [([0], "timeout")]
    assert kept.timers == {7500}
    assert results(expire(rules, kept, 7500)) == [([1], "timeout")]
    assert kept.head() is None


def test_a_group_that_has_ended_wakes_nobody() -> None:
    kept, rules = Memory(), Rules("orders", 2, 1000)
    list(fold(rules, kept, arrivals(0), 0))
    list(fold(rules, kept, arrivals(1), 10))
    assert kept.timers == set() and list(expire(rules, kept, 5000)) == []


def test_the_same_events_give_the_same_id_and_others_another() -> None:
    rules = Rules("orders", 2, None)
    ids = []
    for numbers in ((0, 1), (1, 0), (0, 2)):
        (one,) = [changes for changes in fold(rules, Memory(), arrivals(*numbers), 0) if changes.event_id]
        ids.append(one.event_id)
    assert ids[0] == ids[1] != ids[2]
    parsed = EventId.parse(str(ids[0]))
    assert (parsed.source, parsed.sequence) == ("orders", 0) and parsed.child.startswith("~")


def test_an_id_does_not_depend_on_how_the_events_were_cut_into_batches() -> None:
    rules, found = Rules("orders", 3, None), []
    for batches in (((0, 1, 2),), ((0,), (1,), (2,)), ((0, 1), (2,))):
        kept = Memory()
        found += [one for batch in batches for one in fold(rules, kept, arrivals(*batch), 0) if one.event_id]
    assert len({one.event_id for one in found}) == 1
    assert [one.numbers for one in found] == [[0, 1, 2]] * 3


def test_a_result_says_when_its_first_and_its_last_event_were_received() -> None:
    (changes,) = [one for one in fold(Rules("orders", 2, None), Memory(), arrivals(1, 2), 0) if one.payload]
    group = json.loads(str(changes.payload))
    assert group["first_at"] == "1970-01-01T00:00:01.000000+00:00"
    assert group["last_at"] == "1970-01-01T00:00:02.000000+00:00"


@pytest.mark.parametrize("timeout", [None, 1000])
def test_groups_that_outlast_a_batch_are_told_of_once_when_they_begin_and_once_when_they_end(
    timeout: int | None,
) -> None:
    kept, rules = Memory(), Rules("orders", 3, timeout)
    deadline = NEVER if timeout is None else timeout
    changes = [list(fold(rules, kept, arrivals(n), 0)) for n in range(3)]
    assert [(one.opened, one.closed) for batch in changes for one in batch] == [
        (deadline, None),
        (None, deadline),
    ]
    (whole,) = fold(rules, kept, arrivals(3, 4, 5), 0)
    assert (whole.opened, whole.closed) == (None, None)


def test_open_groups_are_counted_by_deadline_and_a_batch_that_is_done_again_once(tmp_path: Path) -> None:
    groups = OpenGroups(tmp_path / "groups.db")
    assert (groups.number, groups.next_deadline) == (0, None)
    groups.note(0, {1000: 2, NEVER: 1})
    groups.note(0, {1000: 2, NEVER: 1})
    assert (groups.number, groups.next_deadline) == (3, 1000)
    groups.note(1, {1000: -2, 2000: 1})
    assert (groups.number, groups.next_deadline) == (2, 2000)
    groups.note(2, {2000: -1})
    assert (groups.number, groups.next_deadline) == (1, None)
    groups.note(0, {3000: 1})  # Spark has begun anew
    assert (groups.number, groups.next_deadline) == (1, 3000)
    groups.close_store()
