"""What the driver says of rows that wait for the events they repeat: without Spark."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from pyroaring import BitMap64

from signoff.catalog import default
from signoff.engine import full_disk
from signoff.engine.batch.interrupts import Interrupts
from signoff.engine.parts import build_parts
from signoff.engine.plan import duplicates
from signoff.engine.plan.duplicates import Duplicates
from signoff.engine.plan.task_report import ReportKind
from signoff.errors import StateError
from signoff.ledger import Ledger, compaction
from signoff.ledger.batch_state import Done
from signoff.ledger.fates import Fates
from signoff.ledger.outcome import Outcome, RowOutcome, RowRef
from signoff.pipeline.graph import Graph
from signoff.pipeline.load import load
from signoff.stateful.key_claims import Arrival, Decision
from signoff.stateful.key_index import FILE, KeyIndex

PIPELINE = """
name: tested
state: ./state
sources: {incoming: {type: files, path: ./in}}
transforms: {once: {type: dedupe, input: incoming, keys: [KEY]}}
sinks: {archive: {type: files, input: once, path: ./out}}
"""
WITHIN = 10**10


class World:
    """An engine without a plan: its ledger, its index, and what a worker asks."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ledger = Ledger(directory / "state" / "ledger.db", keep_batches=1)
        self.worker = KeyIndex(directory / "state" / FILE)
        self.repeats = self.start("customer")

    def start(self, key: str) -> Duplicates:
        file = self.directory / "pipeline.yaml"
        file.write_text(PIPELINE.replace("KEY", key))
        self.graph: Graph = load(file, default())
        config: Any = self.graph.nodes["once"].config
        self.definition = config.definition
        return Duplicates(self.graph, self.graph, self.ledger)

    def open(self, *sequences: int) -> None:
        for sequence in sequences:
            self.ledger.open_batch("incoming", sequence, sequence + 1, ["archive"])

    def claim(self, sequence: int, key: str, child: str = "") -> Decision:
        rows = [Arrival(sequence, child, sequence, key.encode())]
        fates = Fates(self.ledger)
        return self.worker.claim("once", self.definition, "incoming", rows, WITHIN, fates)[0][0]

    def end(self, sequence: int, *, refused: bool = False) -> None:
        outcomes = [RowOutcome(RowRef(sequence), "archive", Outcome.REFUSED, "no")] if refused else []
        self.ledger.record(
            "incoming",
            sequence,
            sequence + 1,
            delivered=BitMap64() if refused else BitMap64([sequence]),
            outcomes=outcomes,
            sinks={"archive": Done()},
            owed=BitMap64(),
        )

    def news(self, *rows: RowRef) -> tuple[list[tuple[ReportKind, str]], set[int]]:
        said, unknown = self.repeats.news("incoming", "once", rows)
        return [(each.kind, each.child or "") for each in said], set(unknown)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.repeats.close()
    made.worker.close()
    made.ledger.close()


def test_a_row_that_was_never_decided_about_is_asked_again_and_not_passed_over(world: World) -> None:
    world.open(0, 1)
    world.claim(0, "a")
    assert world.claim(1, "a", "0") == Decision.WAITS  # of 1/1, the disk was full
    rows = RowRef(1, "0"), RowRef(1, "1")
    assert world.news(*rows) == ([(ReportKind.WAITS, "0"), (ReportKind.WAITS, "1")], set())
    world.end(0)
    assert world.news(*rows) == ([], {1})
    assert world.news(RowRef(1)) == ([], {1}), "asked by event: nobody knows of which rows"
    assert world.news(rows[0]) == ([(ReportKind.DROPPED, "0")], set())


def test_what_is_tidied_is_not_what_a_batch_has_claimed_that_was_opened_meanwhile(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.open(0)
    world.claim(0, "a")
    waiting = world.repeats._index.waiting

    def meanwhile(source: str) -> Any:
        if world.ledger.books("incoming").next == 1:
            world.open(1)
            world.claim(1, "a")
        return waiting(source)

    monkeypatch.setattr(world.repeats._index, "waiting", meanwhile)
    world.repeats.tidy("incoming", 0)
    assert [each.sequence for each in world.worker.waiting("incoming")] == [1]


def test_what_waited_by_other_keys_is_not_dropped_for_them(world: World) -> None:
    world.open(0, 1, 2, 3)
    assert [world.claim(n, "a customer") for n in range(3)] == ["first", "waits", "waits"]
    world.repeats.close()
    world.repeats = world.start("order")
    assert list(world.repeats.blocked("incoming")) == []
    assert world.news(RowRef(1), RowRef(2)) == ([], {1, 2})
    assert world.claim(1, "order 1") == Decision.FIRST
    world.end(0)
    assert world.news(RowRef(2)) == ([], {2})


def test_waits_are_forgotten_with_their_step_whose_number_may_be_used_again(world: World) -> None:
    world.open(0, 1)
    world.claim(0, "a customer")
    assert world.claim(1, "a customer") == Decision.WAITS
    while world.worker.forget_others({}):
        pass
    world.claim(0, "a customer")
    assert world.worker.waiting("incoming") == []


def test_a_row_does_not_wait_for_an_event_whose_refusal_is_forgotten(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "KEEP_NEGATIVE", 2)
    world.ledger.on_forget = world.repeats.release
    world.ledger.open_batch("other", 0, 1, ["archive"])
    world.open(0)
    world.claim(0, "a")
    rows = [Arrival(0, "", 1, b"a")]
    (decided,) = world.worker.claim("once", world.definition, "other", rows, WITHIN, Fates(world.ledger))
    assert decided[0] == Decision.WAITS
    world.end(0, refused=True)
    for sequence in range(1, 6):
        world.open(sequence)
        world.end(sequence, refused=True)
    assert world.ledger.rows("incoming", 0) == [], "it is forgotten"
    assert world.repeats.news("other", "once", [RowRef(0)]) == ([], {0})


def test_a_ledger_that_cannot_tell_the_index_forgets_no_refusal(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "KEEP_NEGATIVE", 2)
    world.open(0)
    world.claim(0, "a")
    world.end(0, refused=True)
    for sequence in range(1, 6):
        world.open(sequence)
        world.end(sequence, refused=True)
    world.open(6)
    assert world.claim(6, "a") == Decision.FIRST
    world.ledger.on_forget = world.repeats.release
    world.end(6)
    world.open(7)
    world.end(7)
    assert world.ledger.rows("incoming", 0) == [], "as soon as somebody can be told"


def test_an_engine_waits_for_room_for_its_index_of_keys(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = list[Path]()

    def full_at_first(path: Path) -> KeyIndex:
        tries.append(path)
        if len(tries) == 1:
            raise StateError("the disk is full") from OSError(errno.ENOSPC, "no room")
        return KeyIndex(path)

    monkeypatch.setattr(duplicates, "KeyIndex", full_at_first)
    monkeypatch.setattr(full_disk, "_LOOK_S", 0.0)
    graph, spark, letters, control = world.graph, cast(Any, None), cast(Any, None), Interrupts()
    with pytest.raises(StateError):
        build_parts(graph, spark, world.ledger, letters, control)
    tries.clear()
    (part,) = build_parts(graph, spark, world.ledger, letters, control, full_disk.Room())
    assert part.repeats is not None and len(tries) == 2
    part.repeats.close()
