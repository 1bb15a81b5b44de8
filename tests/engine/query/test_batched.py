"""When a batch is cut from the log, without Spark: a clock and a log that grows as they are told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from signoff.engine.query import batched
from signoff.engine.query.batched import BatchedQuery

BEGIN = 1000.0
MOST = 100_000


@dataclass
class World:
    """Stands for the log, the parking, the clock and whoever ends the query."""

    length: Callable[[float], int]
    """Events in the log, by the seconds since the beginning."""
    until: float = 10.0
    may: Callable[[], bool] = lambda: True
    pass_s: float = 0.0
    """How long a pass takes."""
    now: float = BEGIN
    taken: list[tuple[float, int]] = field(default_factory=list)
    """When a batch began, and its size."""

    def monotonic(self) -> float:
        return self.now

    def is_set(self) -> bool:
        return self.now >= BEGIN + self.until

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def end_after(self, begin: int) -> int:
        return self.length(self.now - BEGIN)

    def within(self, start: int, end: int, most_bytes: int) -> int:
        return end

    def may_take(self, size: int, most: int) -> bool:
        return self.may()

    def take(self, batch: Any) -> None:
        self.taken.append((round(self.now - BEGIN, 2), batch.end - batch.start))
        self.now += self.pass_s

    def run(self, monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, int]]:
        monkeypatch.setattr(batched, "time", self)
        query: Any = SimpleNamespace(
            source="incoming",
            shared=SimpleNamespace(ledger=SimpleNamespace(books=lambda source: SimpleNamespace(next=0))),
            config=SimpleNamespace(max_events_per_batch=MOST, max_bytes_per_batch=2**40),
            log=self,
            _backlog=self,
            _collects=lambda *_: False,
        )
        BatchedQuery._take_new(query, self)  # type: ignore[arg-type]
        return self.taken


def test_a_few_events_are_taken_at_once(monkeypatch):
    taken = World(lambda t: 10 if t < 5 else 20).run(monkeypatch)
    assert [size for _, size in taken] == [10, 10]
    assert taken[0][0] == 0 and taken[1][0] == pytest.approx(5, abs=0.02)


def test_the_first_batch_does_not_linger(monkeypatch):
    assert World(lambda t: 50_000).run(monkeypatch) == [(0.0, 50_000)]


def test_while_many_come_a_batch_lingers_for_a_time_after_the_last_began(monkeypatch):
    taken = World(lambda t: 10_000 + int(t * 20_000), pass_s=0.5).run(monkeypatch)
    begins = [at for at, _ in taken[1:]]
    between = [after - before for before, after in pairwise(begins)]
    assert between and between == pytest.approx([batched._LINGER_S] * len(between), abs=0.03)
    assert all(size >= batched._MANY for _, size in taken[1:])


def test_it_does_not_linger_when_nothing_comes_any_more(monkeypatch):
    """The source may wait for us: it is at its limit of unacknowledged events."""
    taken = World(lambda t: 10_000 if t < 0.05 else 30_000).run(monkeypatch)
    assert taken[0] == (0.0, 10_000) and taken[1][1] == 20_000
    assert taken[1][0] == pytest.approx(0.05 + batched._SILENT_S, abs=0.03)


def test_a_full_batch_does_not_linger(monkeypatch):
    taken = World(lambda t: 10_000 + int(t * 1_000_000), until=1).run(monkeypatch)
    assert taken[1][1] == MOST and taken[1][0] == pytest.approx(0.1, abs=0.03)


def test_what_came_during_a_long_pass_is_taken_when_it_ends(monkeypatch):
    taken = World(lambda t: 1 + int(t * 10_000), pass_s=2.0, until=5).run(monkeypatch)
    assert taken[1] == (2.0, 20_000)


def test_nothing_is_taken_while_the_parking_says_no(monkeypatch):
    world = World(lambda t: 100)
    world.may = lambda: world.now > BEGIN + 3
    taken = world.run(monkeypatch)
    assert len(taken) == 1 and taken[0][0] == pytest.approx(3, abs=0.03)


def test_why_it_is_held_is_said_only_while_events_wait():
    query: Any = SimpleNamespace(
        log=SimpleNamespace(head=lambda: 30),
        _taken_upto=20,
        _backlog=SimpleNamespace(why_held=lambda: "nobody takes it"),
        _halt=SimpleNamespace(is_set=lambda: False),
    )
    assert BatchedQuery.why_held(query) == "nobody takes it; 10 events wait in the log"
    query._taken_upto = 30
    assert BatchedQuery.why_held(query) == ""
