"""Random pipelines with a `dedupe` or `throttle`: kills, expiries, refusals, outages, full disks, no Spark.

As `test_settlement_model`, with the real index of keys in the place where a worker asks it. Who is the first
depends on the order and on what becomes of others, so what must hold is said of what the index has answered.

    SIGNOFF_MODEL_RUNS=5000 pytest tests/engine/plan/test_duplicates_model.py   more runs
    SIGNOFF_MODEL_SEED=123 pytest tests/engine/plan/test_duplicates_model.py    one again, with its story
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from signoff.pipeline.model import OnFailure
from signoff.stateful.key_claims import Decision
from tests.engine import test_settlement_model as settlement
from tests.engine.settlement_model import NodeScript, Row, SourceScript, World, _random_sink
from tests.engine.simulated_run import EVERY, machine_directory

_BLOCK = 20
LOST = ("refused", "expired")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    yield from settlement.quiet.__wrapped__()  # type: ignore[attr-defined]


def world_with_dedupe(seed: int) -> World:
    """One or two sources; perhaps a step, a dedupe or two in a row or side by side, and some sinks."""
    rng = random.Random(seed)
    policies: tuple[OnFailure, ...] = ("dead_letter", "refuse", "drop")
    number = rng.choice((1, 1, 2))
    sources = tuple(SourceScript(f"s{n}", rng.randint(2, 9), rng.random() < 0.25) for n in range(number))
    ports: tuple[tuple[str, str | None], ...] = tuple((source.name, None) for source in sources)
    steps: list[NodeScript] = []
    if rng.random() < 0.5:
        kind = rng.choice(("unfold", "step", "filter"))
        tries = rng.choice((None, 2)) if kind == "step" else None
        steps.append(NodeScript("before", kind, ports, rng.choice(policies), tries))  # type: ignore[arg-type]
        ports = (("before", None),)
    steps.append(NodeScript("once", "dedupe", ports, "dead_letter"))
    ends: list[tuple[str, str | None]] = [("once", None)]
    if rng.random() < 0.3:
        behind = rng.random() < 0.5
        steps.append(NodeScript("twice", "dedupe", (("once", None),) if behind else ports, "dead_letter"))
        ends.append(("twice", None))
    if rng.random() < 0.3:
        steps.append(NodeScript("after", "step", (rng.choice(ends),), rng.choice(policies), None))
        ends.append(("after", None))
    sinks = [_random_sink(rng, f"k{n}", (end,), rng.choice(policies)) for n, end in enumerate(ends)]
    if rng.random() < 0.5:
        sinks.append(_random_sink(rng, "beside", (ports[0],), rng.choice(policies)))
    if rng.random() < 0.5:
        places = rng.randint(1, 3)
        steps = [replace(step, places=places) if step.kind == "dedupe" else step for step in steps]
    return World(seed, sources, tuple(steps), tuple(sinks))


def _within_an_interval(rows: Iterable[Row], first: Row) -> list[Row]:
    return [row for row in rows if first[1] <= row[1] <= first[1] + EVERY]


class Run(settlement.Run):
    def __init__(self, seed: int, directory: Path) -> None:
        made = settlement.random_world
        settlement.random_world = world_with_dedupe  # type: ignore[assignment]
        try:
            super().__init__(seed, directory)
        finally:
            settlement.random_world = made
        self.outside.unusable = 0.15 if self.world.chance("unusable") < 0.5 else 0.0

    def settle_all(self) -> None:
        self.outside.unusable = 0.0
        super().settle_all()

    def check_acknowledged(self, source: str, number: int) -> None:
        """See `check_end`."""

    def check_end(self) -> None:
        self.check_audit()
        self.check_tellings()
        self.check_leftovers()
        for source in self.world.sources:
            self.outcomes(source.name, source.events)
        for step in (each.name for each in self.world.steps if each.kind == "dedupe"):
            self.check_step(step)
        for step, row in sorted(self.outside.undecided):
            assert self.is_lost(row), f"{step}: nothing was ever decided about {row}, yet it was acknowledged"

    def is_lost(self, row: tuple[str, int] | Row) -> bool:
        return self.outside.told[row[0], row[1]] in LOST

    def check_step(self, step: str) -> None:
        decided = {row: said for (at, row), said in self.outside.decided.items() if at == step}
        kept = {row: said for row, said in decided.items() if not self.is_lost(row)}
        firsts: dict[str, list[Row]] = {}
        for row, (key, decision, owner) in kept.items():
            if decision == Decision.FIRST:
                firsts.setdefault(key, []).append(row)
            elif owner is not None and (owner.source, owner.sequence) != row[:2]:
                assert not self.is_lost((owner.source, owner.sequence)), (
                    f"{row} was dropped for {owner}, lost"
                )
        for key in {key for key, _, _ in kept.values()}:
            assert firsts.get(key), f"{step}: {key} was never let through"
        if not any(each.kind == "unfold" for each in self.world.steps) and len(self.dedupes) == 1:
            (script,) = [each for each in self.world.steps if each.name == step]
            for key, rows in firsts.items():
                near = [rows] if not script.places else [_within_an_interval(rows, row) for row in rows]
                most = max(script.places, 1)
                assert all(len(some) <= most for some in near), f"{step}: {key} was let through as {rows}"
        for rows in firsts.values():
            for row in rows:
                self.check_delivered(step, row)

    @property
    def dedupes(self) -> list[str]:
        return [each.name for each in self.world.steps if each.kind == "dedupe"]

    def check_delivered(self, step: str, row: Row) -> None:
        """What was let through, and is not lost, has come to the sinks that take everything."""
        for sink in self.world.sinks:
            whole = not sink.refuses and sink.tries is None and not sink.drops_newest and not sink.best_effort
            if sink.inputs != ((step, None),) or not whole or sink.kind == "pipeline" or sink.buffer:
                continue
            held = self.outside.rows(sink.name)
            came = any(name.startswith(f"{row[0]}/{row[1]}") for name in held)
            assert came or not self.model.awaited(sink, row[0]), f"{sink.name} lacks {row}"


def run(seed: int, directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    one = Run(seed, directory)
    try:
        one.go()
    except Exception as error:
        pipeline = "\n  ".join(map(str, (*one.world.sources, *one.world.steps, *one.world.sinks)))
        story = "\n  ".join(one.outside.story)
        raise AssertionError(
            f"SIGNOFF_MODEL_SEED={seed}: {error!r}\n\npipeline:\n  {pipeline}\n\nwhat happened:\n  {story}"
        ) from error


@pytest.mark.parametrize("block", settlement.blocks(settlement.RUNS // 2 // _BLOCK * _BLOCK, _BLOCK))
def test_random_runs_with_a_dedupe_drop_nothing_whose_first_was_lost_and_end(block: int) -> None:
    chosen = [int(settlement.SEED)] if settlement.SEED else range(block * _BLOCK, (block + 1) * _BLOCK)
    with machine_directory() as directory:
        for seed in chosen:
            run(seed, directory / "run")
