"""A throttle: never more rows of a key than it may let through in any interval, whatever comes again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from signoff.ledger.fates import Fate
from signoff.stateful.key_claims import Arrival, Decided, Decision
from signoff.stateful.key_index import KeyIndex, repeats, repeats_another, waits_for
from tests.stateful.test_key_index import Fates, row, said

EVERY = 100


class World:
    def __init__(self, path: Path, events: int) -> None:
        self.index, self.fates = KeyIndex(path / "dedupe.db"), Fates()
        self.definition = json.dumps({"keys": ["k"], "events": events})

    def claim(self, *rows: Arrival, replay: bool = False) -> list[Decided]:
        return self.index.claim("slow", self.definition, "a", rows, EVERY, self.fates, replay=replay)

    def end(self, sequence: int, fate: Fate = Fate.SETTLED) -> None:
        self.fates.known["a", sequence] = fate


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, events=2)
    yield made
    made.index.close()


def test_as_many_as_may_be_are_let_through_in_an_interval_and_the_next_when_it_is_over(world: World) -> None:
    rows = [row(0, at=0), row(1, at=50), row(2, at=60), row(3, "other", at=60)]
    assert said(world.claim(*rows)) == ["first", "first", "waits a/0", "first"]
    assert said(world.claim(row(4, at=EVERY))) == ["waits a/0"]
    assert said(world.claim(row(5, at=EVERY + 1), row(6, at=EVERY + 2))) == ["first", "waits a/5"]
    world.end(5)
    assert said(world.claim(row(6, at=EVERY + 2))) == ["waits a/1"], (
        "another place may be free before it ends"
    )
    world.end(1)
    assert said(world.claim(row(6, at=EVERY + 2))) == ["repeats a/1"]


def test_what_comes_again_long_after_is_decided_as_it_was(world: World) -> None:
    """As after a crash, when a sink was down for many intervals and is given everything now."""
    rows = [row(n, at=10 * n) for n in range(100)]
    first = world.claim(*rows)
    through = [n for n, (decision, _) in enumerate(first) if decision == Decision.FIRST]
    assert through == [0, 1, 11, 12, 22, 23, 33, 34, 44, 45, 55, 56, 66, 67, 77, 78, 88, 89, 99]
    assert said(world.claim(*rows)) == said(first)
    for n in through:
        world.end(n)
    again = world.claim(*rows)
    assert [n for n, (decision, _) in enumerate(again) if decision == Decision.FIRST] == through
    assert {decision for decision, _ in again} == {Decision.FIRST, Decision.REPEATS}


def test_an_event_that_was_let_through_and_is_refused_or_expires_does_not_keep_out_the_next(
    world: World,
) -> None:
    assert said(world.claim(row(0, at=0), row(1, at=1), row(2, at=2))) == ["first", "first", "waits a/0"]
    world.end(1, Fate.LOST)
    assert said(world.claim(row(2, at=2), row(3, at=3))) == ["first", "waits a/0"]
    assert said(world.claim(row(1, at=1))) == ["given up"]
    assert world.index.count("slow", world.definition) == 2


def test_rows_of_one_event_take_places_like_others_and_wait_for_nobody(world: World) -> None:
    rows = [row(0, child=str(n), at=0) for n in range(3)]
    assert said(world.claim(*rows)) == ["first", "first", "repeats a/0/1"]
    assert said(world.claim(*rows)) == ["first", "first", "repeats a/0/1"]


def test_it_says_what_keeps_a_row_out(world: World) -> None:
    ((_, owner),) = world.claim(row(0, at=0), row(1, at=0), row(2, at=1))[2:]
    assert owner is not None
    assert repeats(owner.event_id, world.definition) == "throttled after a/0"
    assert repeats_another(waits_for(owner.event_id, world.definition))
    assert not repeats_another("the index of keys cannot be used")


STEPS = st.lists(
    st.tuples(st.integers(0, 40), st.sampled_from("xy"), st.sampled_from(["end", "lose", "again", ""])),
    min_size=1,
    max_size=30,
)


@given(events=st.integers(1, 3), steps=STEPS, data=st.data())
@settings(max_examples=150, deadline=None)
def test_in_no_interval_more_pass_than_may_and_none_is_kept_out_without_them(
    tmp_path_factory: pytest.TempPathFactory,
    events: int,
    steps: list[tuple[int, str, str]],
    data: st.DataObject,
) -> None:
    world = World(tmp_path_factory.mktemp("index"), events)
    rows: list[Arrival] = []
    now = 0
    decided: dict[int, Decision] = {}

    def come(some: list[Arrival]) -> None:
        for each, (decision, _) in zip(some, world.claim(*some), strict=True):
            decided[each.sequence] = decision

    for number, (pause, key, what) in enumerate(steps):
        now += pause
        rows.append(row(number, key, at=now))
        come(rows[-1:])
        some = data.draw(st.sampled_from(range(len(rows))))
        if what == "again":
            before = dict(decided)
            come(rows[some:])
            kept = {n for n, decision in before.items() if decision == Decision.FIRST}
            assert all(decided[n] in (Decision.FIRST, Decision.GIVEN_UP) for n in kept), (
                "its place is its own"
            )
        elif what and decided[some] == Decision.FIRST and ("a", some) not in world.fates.known:
            world.end(some, Fate.SETTLED if what == "end" else Fate.LOST)
    through = [
        each
        for each in rows
        if decided[each.sequence] == Decision.FIRST and world.fates("a", each.sequence) != Fate.LOST
    ]
    for each in rows:
        near = [
            other
            for other in through
            if other.key == each.key and each.received <= other.received <= each.received + EVERY
        ]
        assert len(near) <= events, "in the interval that begins with it"
