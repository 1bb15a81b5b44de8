"""A replay that is interrupted brings each row to a sink once, whatever is done with its letters until it is
finished: without Spark, with kills at every place that matters."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from pyroaring import BitMap64

from signoff.ledger import DeadLetters, drop_letters
from signoff.log import LogReader
from signoff.sinks.contract import BatchRef
from tests.engine.settlement_model import NodeScript, Row, SinkScript, SourceScript, World
from tests.engine.simulated_replay import replay_letters
from tests.engine.simulated_run import Killed, Machine, Outside, fill_logs

EVENTS = 3
PLACES = (
    "k0 has published",
    "after the rows of a link are synced",
    "before letters are accounted for",
    "after letters are accounted for",
)


class Mendable(World):
    """Its step fails for all rows until it is mended."""

    def step_says(self, step: str, row: Row) -> Literal["passes", "fails", "drops"]:
        return "passes" if self.mended else "fails"

    def step_stumbles(self, step: str, row: Row) -> frozenset[int]:
        return frozenset()


class Scene:
    """Letters of a step that is mended now; behind it a sink that publishes batches, and a link."""

    def __init__(self, directory: Path) -> None:
        step = NodeScript("t0", "step", (("s0", None),), "dead_letter")
        common = {
            "inputs": (("t0", None),), "policy": "dead_letter", "tries": None, "buffer": "", "refuses": 0.0,
            "drops_newest": False, "authoritative": False, "best_effort": False, "shaky": 0.0,
            "outages": False,
        }  # fmt: skip
        sinks = tuple(
            SinkScript(name=name, kind=kind, **common)  # type: ignore[arg-type]
            for name, kind in (("k0", "batches"), ("k1", "pipeline"))
        )
        world = Mendable(0, (SourceScript("s0", EVENTS, False),), (step,), sinks)
        self.directory, self.rng = directory, random.Random(0)
        fill_logs(world, directory / "state")
        self.outside = Outside(world, self.rng)
        self.start()
        self.machine.queries["s0"].parking.take(BatchRef("s0", 0, EVENTS))
        assert [letter.stage for letter in self.letters.list()] == ["t0"] * EVENTS
        world.mended = 1.0

    def start(self) -> None:
        self.machine = Machine(self.outside, self.directory, self.rng)
        self.machine.start()

    @property
    def letters(self) -> DeadLetters:
        return self.machine.letters

    def killed_replay(self, place: str) -> None:
        self.letters.request_replay(self.letters.list())
        point = self.machine.point

        def dies(what: str, **how: bool) -> None:
            if what == place:
                raise Killed
            point(what, **how)

        self.machine.point = dies  # type: ignore[method-assign]
        with pytest.raises(Killed):
            replay_letters(self.machine)
        self.machine.end()
        self.start()

    def drop(self, *numbers: int) -> None:
        """As `dead-letters drop` does while no run is alive."""
        chosen = [letter for n in numbers for letter in self.letters.get(f"s0/{n}")]
        self.letters.take_for_drop(chosen)
        stored = [replace(letter, status="stored") for letter in chosen]
        assert drop_letters(self.machine.ledger, self.letters, stored) == len(numbers)

    def settle(self) -> None:
        """The other pipeline settles what it was given."""
        (link,) = self.machine.feedback
        link._notes.answer(BitMap64(range(link._log.head())), {})

    def tend(self) -> None:
        (link,) = self.machine.feedback
        link.tend()

    def replayed(self, sink: str) -> Counter[str]:
        """How often rows have come to a sink."""
        if sink == "k0":
            return Counter(row for rows in self.outside.published.get(sink, {}).values() for row in rows)
        log = LogReader(self.directory / "links" / sink / "log")
        found = Counter[str]()
        for _, events in log.read(log.first(), log.head(), ["message_id"]):
            found.update(events.column("message_id").to_pylist())
        return found


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.machine.end()


def test_without_any_kill_each_row_comes_once(scene: Scene) -> None:
    scene.letters.request_replay(scene.letters.list())
    replay_letters(scene.machine)
    every = {f"s0/{n}": 1 for n in range(EVENTS)}
    assert scene.replayed("k0") == scene.replayed("k1") == every


def cancelled(scene: Scene) -> None:
    """Ctrl-C, and then only some are asked for."""
    scene.letters.withdraw(scene.letters.list())
    scene.letters.request_replay(scene.letters.get("s0/1"))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "meanwhile",
    [lambda scene: scene.drop(0), lambda scene: scene.drop(1, 2), cancelled],
    ids=["one is dropped", "all but one are dropped", "cancelled"],
)
@pytest.mark.parametrize("settled", [False, True])
def test_rows_come_once_also_if_some_letters_are_dropped_or_the_request_is_withdrawn(
    scene: Scene, place: str, meanwhile: Callable[[Scene], None], settled: bool
) -> None:
    scene.killed_replay(place)
    if settled:
        scene.settle()
    meanwhile(scene)
    scene.tend()
    replay_letters(scene.machine)
    scene.settle()
    scene.tend()
    dropped = {letter.event_id for letter in scene.letters.list(statuses=("dropped",))}
    for sink in ("k0", "k1"):
        found = scene.replayed(sink)
        assert set(found.values()) == {1}, f"{sink} has rows twice: {found}"
        assert found.keys() | dropped == {f"s0/{n}" for n in range(EVENTS)}
    assert scene.letters.list() == []
