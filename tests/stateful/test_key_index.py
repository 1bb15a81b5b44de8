"""The index of keys: who is the first, who waits for whom, and what is forgotten."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from signoff.ledger.fates import Fate
from signoff.stateful.key_claims import Arrival, Decided, Decision
from signoff.stateful.key_index import KeyIndex

WITHIN = 1_000
STEP = ("once", '["k"]')


class Fates:
    """A ledger: everything is in flight until it is said what became of it."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, int], Fate] = {}

    def __call__(self, source: str, sequence: int) -> Fate:
        return self.known.get((source, sequence), Fate.IN_FLIGHT)


class World:
    def __init__(self, path: Path) -> None:
        self.index, self.fates = KeyIndex(path / "dedupe.db"), Fates()

    def claim(
        self, *rows: Arrival, source: str = "a", step: str = "once", replay: bool = False
    ) -> list[Decided]:
        return self.index.claim(step, STEP[1], source, rows, WITHIN, self.fates, replay=replay)

    def end(self, sequence: int, fate: Fate, source: str = "a") -> None:
        self.fates.known[source, sequence] = fate


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.index.close()


def row(
    sequence: int, key: str = "k", child: str = "", at: int | None = None, others: tuple[int, ...] = ()
) -> Arrival:
    return Arrival(sequence, child, sequence if at is None else at, key.encode(), others)


def said(decided: list[Decided]) -> list[str]:
    return [f"{decision} {owner.event_id}" if owner else str(decision) for decision, owner in decided]


def test_the_first_of_several_rows_owns_the_key_and_the_others_wait_for_it(world: World) -> None:
    assert said(world.claim(row(0), row(1), row(2, "other"))) == ["first", "waits a/0", "first"]
    assert said(world.claim(row(5), source="b")) == ["waits a/0"]


def test_a_batch_that_is_done_again_is_decided_as_before(world: World) -> None:
    rows = [row(0), row(1), row(2, "other")]
    first = said(world.claim(*rows))
    assert said(world.claim(*rows)) == first
    assert said(world.claim(*rows[2:])) + said(world.claim(*rows[1:2])) == ["first", "waits a/0"]


@pytest.mark.parametrize(("fate", "then"), [(Fate.SETTLED, "repeats a/0"), (Fate.LOST, "first")])
def test_a_duplicate_shares_the_fate_of_the_event_it_repeats(world: World, fate: Fate, then: str) -> None:
    world.claim(row(0), row(1))
    world.end(0, fate)
    assert said(world.claim(row(1))) == [then]
    assert said(world.claim(row(2))) == ["repeats a/0" if fate == Fate.SETTLED else "waits a/1"]


def test_an_event_that_expired_before_it_came_is_not_the_first(world: World) -> None:
    world.end(0, Fate.LOST)
    assert said(world.claim(row(0), row(1))) == ["given up", "first"]
    assert said(world.claim(row(2), replay=True)) == ["waits a/1"]
    world.end(3, Fate.LOST)
    assert said(world.claim(row(3, "other"), replay=True)) == ["first"]


def test_a_second_row_of_one_event_is_dropped_and_waits_for_nobody(world: World) -> None:
    rows = [row(0, child="0"), row(0, child="1"), row(4, child="~x", others=(0,))]
    assert said(world.claim(*rows)) == ["first", "repeats a/0/0", "repeats a/0/0"]
    assert said(world.claim(*rows)) == ["first", "repeats a/0/0", "repeats a/0/0"]


def test_a_key_is_forgotten_after_its_time_whoever_asks_first(world: World) -> None:
    world.claim(row(0, at=0))
    assert said(world.claim(row(1, at=WITHIN))) == ["waits a/0"]
    assert said(world.claim(row(2, at=WITHIN + 1))) == ["first"], "too long ago"
    assert said(world.claim(row(0, at=0))) == ["first"], "it is asked for again, and has nothing to do with 2"
    assert said(world.claim(row(3, at=WITHIN + 2))) == ["waits a/2"]


def test_two_events_that_repeat_each_other_do_not_wait_for_each_other(world: World) -> None:
    world.claim(row(0, "x", "0"))
    world.claim(row(1, "y", "0"))
    assert said(world.claim(row(1, "x", "1"))) == ["waits a/0/0"]
    assert said(world.claim(row(0, "y", "1"))) == ["first"], "or both would wait for ever"


def test_circles_are_found_through_several_events_steps_and_sources(world: World) -> None:
    world.claim(row(0, "x"), source="a")
    world.claim(row(0, "y"), source="b", step="other")
    world.claim(row(0, "z"), source="c")
    assert said(world.claim(row(0, "x", "1"), source="b")) == ["waits a/0"]
    assert said(world.claim(row(0, "y", "1"), source="c", step="other")) == ["waits b/0"]
    assert said(world.claim(row(0, "z", "1"), source="a")) == ["first"]
    world.end(0, Fate.SETTLED, "b")
    assert said(world.claim(row(0, "z", "2"), source="a")) == ["waits c/0"], "nobody waits for b any more"


def test_who_waits_for_whom_is_known_until_it_is_over(world: World) -> None:
    world.claim(row(0), row(1), row(2, child="x", others=(3,)))
    found = {(each.sequence, each.child, str(each.owner)) for each in world.index.waiting("a")}
    assert found == {(1, "", "a/0"), (2, "x", "a/0"), (3, "x", "a/0")}
    assert [each.sequence for each in world.index.waiting("a", [1, 7])] == [1]
    world.end(0, Fate.SETTLED)
    world.claim(row(1))
    world.index.stop_waiting("a", [2, 3])
    assert world.index.waiting("a") == []


def test_the_oldest_keys_are_forgotten_by_time_and_by_number(world: World) -> None:
    world.claim(*(row(n, f"{n}") for n in range(10)))
    world.claim(*(row(n, f"b{n}", at=n + 100) for n in range(10)), source="b")
    assert world.index.count(*STEP) == 20
    assert world.index.forget_before(*STEP, 5) == 5
    assert world.index.forget_before(*STEP, 5) == 0
    assert said(world.claim(row(20, "4"), row(21, "5"))) == ["first", "waits a/5"]
    while world.index.forget_beyond(*STEP, 6):
        pass
    assert world.index.count(*STEP) == 6
    assert said(world.claim(row(8, "b8"), source="c")) == ["waits b/8"], "the newest are still known"
    assert said(world.claim(row(30, "9"))) == ["first"]


def test_what_a_refused_event_owned_is_released_before_the_ledger_forgets_it(world: World) -> None:
    world.claim(row(0), row(1, "other"))
    world.index.release("a", [0])
    world.index.release("unknown", [0])
    world.end(0, Fate.SETTLED)  # as it looks to a ledger that has forgotten it
    assert said(world.claim(row(2))) == ["first"]
    assert world.index.count(*STEP) == 2


def test_another_definition_begins_anew_and_the_old_one_is_forgotten(world: World) -> None:
    world.claim(row(0))
    new = world.index.claim("once", '["k", "l"]', "a", [row(1)], WITHIN, world.fates)
    assert said(new) == ["first"]
    while world.index.forget_others({"once": '["k", "l"]'}):
        pass
    assert world.index.steps() == {"once": '["k", "l"]'}
    assert world.index.count(*STEP) == 0


# -- whatever happens, in whatever order ----------------------------------------------------------

EVENTS = st.lists(st.lists(st.sampled_from("xyz"), min_size=1, max_size=3), min_size=1, max_size=8)
ENDS = st.sampled_from([Fate.SETTLED, Fate.LOST])


@given(events=EVENTS, data=st.data())
@settings(max_examples=150, deadline=None)
def test_nobody_waits_for_ever_and_a_key_is_dropped_only_if_its_first_is_settled(
    tmp_path_factory: pytest.TempPathFactory, events: list[list[str]], data: st.DataObject
) -> None:
    """Events of several rows come in any order and again; those that wait for nobody end, well or badly."""
    world = World(tmp_path_factory.mktemp("index"))
    decided: dict[tuple[int, int], Decided] = {}

    def come(event: int) -> None:
        for number, key in enumerate(events[event]):
            (decided[event, number],) = world.claim(row(event, key, str(number)))

    def waits(event: int) -> bool:
        return any(decided[event, n][0] == Decision.WAITS for n in range(len(events[event])))

    open_ones = set(range(len(events)))
    for event in data.draw(st.permutations(sorted(open_ones))):
        come(event)
    while open_ones:
        for event in data.draw(st.lists(st.sampled_from(sorted(open_ones)))):
            come(event)
        for event in [each for each in sorted(open_ones) if waits(each)]:
            come(event)
        free = [event for event in sorted(open_ones) if not waits(event)]
        assert free, "all wait for one another"
        event = data.draw(st.sampled_from(free))
        open_ones.remove(event)
        world.end(event, data.draw(ENDS))
    for (event, number), (decision, owner) in decided.items():
        if decision == Decision.REPEATS and owner is not None and owner.sequence != event:
            assert world.fates("a", owner.sequence) == Fate.SETTLED
            assert decided[owner.sequence, int(owner.child)][0] == Decision.FIRST
            assert events[owner.sequence][int(owner.child)] == events[event][number]
    world.index.close()
