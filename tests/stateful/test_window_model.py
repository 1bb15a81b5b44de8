"""Random worlds of batches, sources, kills and silence in front of a window, against Spark's watermark rules.

Spark drops a row whose window the watermark has passed, without a word. So in every world: it never sees such
a row, every event is in its windows once or was found late, and every window is given out once.
`SIGNOFF_MODEL_RUNS` makes it longer, `SIGNOFF_MODEL_SEED` repeats one world.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from signoff.link.handover import LinkPlace
from signoff.log import LogReader
from signoff.sinks.contract import BatchRef, Part
from signoff.stateful.watermarks import Watermarks
from signoff.stateful.window_sinks import WindowIntake, WindowIntakeConfig
from signoff.transforms.window.bounds import Panes
from signoff.transforms.window.partial import Measure
from signoff.transforms.window.watermark_rule import WatermarkRule
from tests.clock import Clock

SECOND = 1_000_000
RUNS = int(os.environ.get("SIGNOFF_MODEL_RUNS", "60"))
SEED = os.environ.get("SIGNOFF_MODEL_SEED")
SEEDS = [int(SEED)] if SEED else list(range(RUNS))

Event = tuple[int, int, str]
"""Number, time in seconds, key."""


@dataclass
class Spark:
    """The query behind the link, by Spark's rules."""

    log: LogReader
    read: int = 0
    watermark: int = 0
    latest: dict[str, int] = field(default_factory=lambda: {"mark": 0, "end": 0})
    state: Counter[tuple[int, int, str]] = field(default_factory=Counter)
    given: dict[tuple[int, int, str], int] = field(default_factory=dict)

    def batch(self, upto: int, size: int) -> None:
        """Read some rows, then give out what the watermark of the batches before has passed."""
        for _, events in self.log.read(self.read, upto) if upto > self.read else ():
            for text in events.column("payload").to_pylist():
                row = json.loads(text)
                if "__start" in row:
                    end = row["__start"] + size
                    assert end > self.watermark, "Spark would have dropped this row"
                    self.state[(row["__start"], end, row["key"])] += row["__p0"]
                    self.latest["end"] = max(self.latest["end"], end)
                else:
                    self.latest = {n: max(v, row["__mark"]) for n, v in self.latest.items()}
        self.read = upto
        for key in [key for key in self.state if key[1] <= self.watermark]:
            assert key not in self.given, "a window is given out twice"
            self.given[key] = self.state.pop(key)
        self.watermark = max(self.watermark, min(self.latest.values()) // 1000 * 1000)

    def restart(self) -> None:
        """Of the watermarks it has seen Spark keeps the lower one only."""
        self.latest = {"mark": 0, "end": 0}


@dataclass
class Open:
    batch: BatchRef
    stamp: int | None
    committed: bool = False


class World:
    def __init__(self, directory: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.place = LinkPlace(directory / "log", directory / "notes")
        self.clock = Clock(1000.0)
        self.panes = self.chance.choice([Panes(60 * SECOND, 60 * SECOND), Panes(60 * SECOND, 20 * SECOND)])
        self.progress = WatermarkRule(
            self.chance.choice([0, 30, 120]) * SECOND, self.chance.choice([None, None, 5]), idle_after=30.0
        )
        self.events = {name: self._events() for name in self.chance.choice([["a"], ["a", "b"]])}
        self.next = dict.fromkeys(self.events, 0)
        self.open: dict[tuple[str, int], Open] = {}
        self.late: Counter[tuple[str, int]] = Counter()
        self.stamps: dict[tuple[str, int], int | None] = {}
        self.intake = self._intake()
        self.spark = Spark(LogReader(self.place.log))

    def _events(self) -> list[Event]:
        now, events = 10_000, list[Event]()
        for number in range(self.chance.randrange(5, 120)):
            now += self.chance.choice([0, 1, 5, 40])
            back = self.chance.choice([0, 0, 10, 100, 400])
            events.append((number, now - self.chance.randrange(back + 1), self.chance.choice("xy")))
        return events

    def _intake(self) -> WindowIntake:
        config = WindowIntakeConfig(
            place=self.place, sink="w.state", max_bytes=1024**2, when_full="block", awaited_by=frozenset(),
            panes=self.panes, keys=("key",), measures=(Measure("rows", "", "__p0"),), combines=True,
            with_origins=False, progress=self.progress, sources=frozenset(self.events),
        )  # fmt: skip
        made = config.build(Path())
        path = self.place.notes / "marks.db"
        made._marks = Watermarks(path, self.progress, self.events, clock=self.clock)
        return made

    def run(self) -> None:
        kills = [self.kill, self.kill_as_rows_are_handed_on, self.kill_as_spark_is_told]
        actions = [self.take, self.take, self.take, self.do, self.do, self.do, self.spark_reads, self.wait]
        actions.append(lambda: self.chance.choice(kills)())
        for _ in range(self.chance.randrange(20, 90)):
            self.chance.choice(actions)()
        self.finish()

    def take(self) -> None:
        source = self.chance.choice(list(self.events))
        start = self.next[source]
        end = min(start + self.chance.randrange(1, 30), len(self.events[source]))
        if start == end:
            return
        batch = BatchRef(source, start, end)
        self.open[(source, start)] = Open(batch, self.intake.stamp(batch))
        self.stamps[(source, start)] = self.open[(source, start)].stamp
        self.next[source] = end

    def do(self) -> None:
        """Some step of some open batch: hand its rows on, or close it."""
        if not self.open:
            return
        key = self.chance.choice(list(self.open))
        one = self.open[key]
        if one.committed and self.chance.random() < 0.7:
            self._count_late(one)
            self.intake.close_batch(one.batch)
            del self.open[key]
        else:
            self._hand_on(one)
            one.committed = True

    def _hand_on(self, one: Open) -> None:
        rows = [event for event in self._of(one.batch) if self._windows(event[1], one.stamp)]
        cut = self.chance.randrange(len(rows) + 1)
        parts = []
        for number, share in enumerate((rows[:cut], rows[cut:])):
            writer = self.intake.open(Part(one.batch, number, self.chance.randrange(10**6)))
            if share:
                writer.write(_batch(share, one.stamp, self.panes.sliding))
            if (part := writer.close()) is not None:
                parts.append(part)
        if parts:
            self.intake.commit(one.batch, parts)

    def _of(self, batch: BatchRef) -> list[Event]:
        return self.events[batch.source][batch.start : batch.end]

    def _windows(self, second: int, closed: int | None) -> list[int]:
        moment, starts = second * SECOND, list[int]()
        start = moment - moment % self.panes.every
        while start + self.panes.size > moment:
            if closed is None or start + self.panes.size > closed:
                starts.append(start)
            start -= self.panes.every
        return starts

    def _count_late(self, one: Open) -> None:
        for number, second, _ in self._of(one.batch):
            if not self._windows(second, one.stamp):
                self.late[(one.batch.source, number)] += 1

    def spark_reads(self) -> None:
        head = self.spark.log.head()
        upto = self.chance.randrange(self.spark.read, head + 1) if head > self.spark.read else head
        self.spark.batch(upto, self.panes.size)

    def wait(self) -> None:
        self.clock.now += self.chance.choice([1, 10, 40])
        # Whatever had come when a source became silent: some of what is taken, or all.
        self.intake.advance({source: self.chance.choice([0, n // 2, n]) for source, n in self.next.items()})

    def kill(self) -> None:
        """Whatever was committed but not closed is done again, with the same stamp."""
        self.intake.release()
        self.intake = self._intake()
        for source in self.events:
            unfinished = [one.batch for one in self.open.values() if one.batch.source == source]
            self.intake.marks.forget_others(source, unfinished)
        self.intake.advance()
        for key, one in self.open.items():
            assert self.intake.stamp(one.batch) == self.stamps[key] == one.stamp
            one.committed = False
        self.spark.restart()
        if self.intake.marks.mark is not None:
            self.intake.remind()

    def kill_as_rows_are_handed_on(self) -> None:
        """They are noted, and not in the log."""
        if waiting := [one for one in self.open.values() if not one.committed]:
            log, _ = self.intake._open()
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(log, "append_all", _dies_at(log.append_all, lambda pieces: bool(pieces)))
                with suppress(_Killed):
                    self._hand_on(self.chance.choice(waiting))
        self.kill()

    def kill_as_spark_is_told(self) -> None:
        """The mark is in the log, and nobody has noted it."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.intake.marks, "tell", _dies_at(self.intake.marks.tell, lambda mark: True))
            with suppress(_Killed):
                self.wait()
        self.kill()

    def finish(self) -> None:
        while self.open or any(n < len(self.events[s]) for s, n in self.next.items()):
            self.take()
            self.do()
        for _ in range(3):
            self.clock.now += 40
            self.intake.advance(self.next)
            for _ in range(2):
                self.spark.batch(self.spark.log.head(), self.panes.size)
        self.intake.release()

    def expected(self) -> Counter[tuple[int, int, str]]:
        """What is in the windows of all batches, each as its stamp says."""
        found: Counter[tuple[int, int, str]] = Counter()
        starts = sorted(self.stamps)
        for at, (source, start) in enumerate(starts):
            more = starts[at + 1] if at + 1 < len(starts) and starts[at + 1][0] == source else None
            end = more[1] if more else len(self.events[source])
            for _, second, key in self.events[source][start:end]:
                for begin in self._windows(second, self.stamps[(source, start)]):
                    found[(begin, begin + self.panes.size, key)] += 1
        return found


class _Killed(BaseException):
    pass


def _dies_at(do: Callable[[Any], Any], when: Callable[[Any], bool]) -> Callable[[Any], Any]:
    def call(given: Any) -> Any:
        if when(given):
            raise _Killed
        return do(given)

    return call


def _batch(events: list[Event], closed: int | None, sliding: bool) -> pa.RecordBatch:
    columns: dict[str, Any] = {
        "event_id": pa.nulls(len(events), pa.string()),
        "__time": pa.array([second * SECOND for _, second, _ in events], pa.int64()),
        "key": [key for _, _, key in events],
        "_origin": pa.array([number for number, _, _ in events], pa.int64()),
    }
    if sliding:
        columns["__mark"] = pa.array([closed] * len(events), pa.int64())
    return pa.record_batch(columns)


@pytest.mark.case(24, 36, 37)
@pytest.mark.parametrize("seed", SEEDS)
def test_every_event_is_in_its_windows_once_or_found_late_in_every_world(tmp_path: Path, seed: int) -> None:
    world = World(tmp_path, seed)
    world.run()
    assert not world.spark.state, "a window was never closed"
    assert world.spark.given == dict(world.expected())
    assert all(times == 1 for times in world.late.values())
    if not world.panes.sliding:
        taken = sum(world.spark.given.values())
        assert taken + len(world.late) == sum(map(len, world.events.values()))
