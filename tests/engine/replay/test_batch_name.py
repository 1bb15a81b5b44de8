"""As which batch letters are replayed: sinks that publish whole batches lose no rows by it. No Spark."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyroaring import BitMap64

from signoff.engine.batch.interrupts import Interrupts
from signoff.engine.engine import Engine
from signoff.engine.replay import replayer
from signoff.engine.replay.batch_name import new_replay
from signoff.engine.replay.replayer import Replayer
from signoff.ledger import (
    DeadLetter,
    DeadLetters,
    Ledger,
    Outcome,
    Resolution,
    RowOutcome,
    RowRef,
)
from signoff.ledger.batch_state import Done
from signoff.ledger.dead_letters import close_letters
from signoff.sinks.contract import Part
from signoff.sinks.files.sink import FilesSink


class Killed(BaseException):
    """As Ctrl-C, or a kill."""


class Scene(Replayer):
    """Letters of events of `incoming`. A pass writes a row of each to the real files sink; only Spark is not
    there."""

    def __init__(self, directory: Path) -> None:
        self.ledger = Ledger(directory / "ledger.db")
        self.letters = DeadLetters(directory / "dead_letters.db")
        shared: Any = SimpleNamespace(
            graph=SimpleNamespace(sources={"incoming": None}), ledger=self.ledger, letters=self.letters
        )
        super().__init__([shared])
        self.out = directory / "out"
        self.sink = FilesSink(self.out)
        self.sink.prepare()
        self.passes = 0
        self.killed = ""
        """Where the next pass ends: `before` anything is written, or `after` all of it is."""

    def _group(self, source: str, stage: str, letters: Sequence[DeadLetter]) -> None:
        batch = self._batch_of(source, letters)
        if self.killed == "before":
            raise Killed
        self.passes += 1
        writer = self.sink.open(Part(batch, 0, self.passes))
        writer.write(pa.record_batch({"event_id": [f"{x.event_id} of {stage}" for x in letters]}))
        part = writer.close()
        assert part is not None
        self.sink.commit(batch, [part])
        if self.killed == "after":
            raise Killed
        ends = [Resolution(*letter.key, Outcome.DELIVERED, "delivered") for letter in letters]
        close_letters(self.ledger, self.letters, ends)

    def store(self, stages: Sequence[str], number: int) -> list[DeadLetter]:
        outcomes = [
            RowOutcome(RowRef(n), stage, Outcome.DEAD_LETTERED, "no")
            for n in range(number)
            for stage in stages
        ]
        self.ledger.open_batch("incoming", 0, number, ["out"])
        self.ledger.record("incoming", 0, number, delivered=BitMap64(), outcomes=outcomes,
                           sinks={"out": Done()}, owed=BitMap64())  # fmt: skip
        self.letters.add([DeadLetter(f"incoming/{o.row.sequence}", o.stage, "no", b"{}") for o in outcomes])
        return self.letters.list()

    def replay(self, letters: Sequence[DeadLetter], killed: str = "") -> None:
        self.letters.request_replay(letters)
        self.killed = killed
        if not killed:
            self.run()
            return
        with pytest.raises(Killed):
            self.run()
        self.killed = ""

    def written(self) -> list[str]:
        return [
            json.loads(line)["event_id"]
            for file in sorted(self.out.glob("*.jsonl"))
            for line in file.read_text().splitlines()
        ]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.letters.close()
    made.ledger.close()


def test_letters_of_one_event_at_two_stages_are_two_batches(scene: Scene) -> None:
    scene.replay(scene.store(["t1", "t2"], 1))
    assert sorted(scene.written()) == ["incoming/0 of t1", "incoming/0 of t2"]
    first, second = (DeadLetter("incoming/0", stage, "no", b"") for stage in ("t1", "t2"))
    assert new_replay("incoming", [first]) != new_replay("incoming", [second])


@pytest.mark.parametrize("when", ["before", "after"])
def test_letters_of_a_pass_that_has_begun_are_not_taken_back_and_are_replayed_together(
    scene: Scene, when: str
) -> None:
    letters = scene.store(["out"], 4)
    scene.letters.request_replay(letters[3:])
    assert scene.letters.withdraw(letters[3:]) == 1, "nothing has begun with it"
    scene.replay(letters[:3], killed=when)
    assert scene.letters.withdraw(letters) == 0
    for letter in letters:
        scene.replay([letter])
    assert sorted(scene.written()) == [f"incoming/{n} of out" for n in range(4)], "each once"
    assert scene.letters.count(statuses=("replayed",)) == 4


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_letter_taken_out_of_an_interrupted_pass_and_replayed_alone_takes_the_place_of_no_other(
    scene: Scene, when: str
) -> None:
    """As a drop does that was killed before it had claimed the letter."""
    letters = scene.store(["out"], 3)
    scene.replay(letters, killed=when)
    assert scene.letters.take_for_drop(letters[:1]) == 1
    scene.run()
    scene.replay(letters[:1])
    assert sorted(scene.written()) == [f"incoming/{n} of out" for n in range(3)], "each once"


def test_letters_left_of_a_batch_whose_others_are_closed_are_another_one(scene: Scene) -> None:
    """As a kill leaves them, between the others' end and the note that these were handed on."""
    letters = scene.store(["out"], 3)
    scene.replay(letters, killed="after")
    ends = [Resolution(*letter.key, Outcome.DELIVERED, "delivered") for letter in letters[:2]]
    close_letters(scene.ledger, scene.letters, ends)
    scene.run()
    assert set(scene.written()) == {f"incoming/{n} of out" for n in range(3)}


def test_killed_while_its_letters_are_marked_a_replay_is_done_again_with_all_of_them_as_the_same_batch(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a window that has the rows of some would be given them again, under another name."""
    letters = scene.store(["out"], 3)
    scene.replay(letters, killed="after")
    (batch,) = {letter.batch for letter in scene.letters.list()}
    ends = [Resolution(*letter.key, Outcome.DELIVERED, "delivered") for letter in letters[:2]]

    def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr("signoff.ledger.dead_letters._forget_history", die)
        close_letters(scene.ledger, scene.letters, ends, handed=[(letters[2:], ["window"], "")])
    assert {(letter.status, letter.batch) for letter in scene.letters.list()} == {("replaying", batch)}
    close_letters(scene.ledger, scene.letters, ends, handed=[(letters[2:], ["window"], "")])
    (handed,) = scene.letters.list()
    assert (handed.status, handed.handed, handed.batch) == ("handed", ("window",), batch)


def test_a_replay_that_was_killed_is_done_again_as_one_batch_however_many_others_are_asked_for(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("signoff.engine.replay.replayer._AT_ONCE", 4)
    letters = scene.store(["out"], 5)
    scene.replay(letters[1:], killed="after")
    scene.replay(letters[:1])  # it is older: with it, the batch is more than are looked at at once
    assert sorted(scene.written()) == [f"incoming/{n} of out" for n in range(5)], "each once"
    assert scene.passes == 3, "the killed one, the same again, and the older letter"


def test_a_step_replays_one_pass_and_no_more_bytes_than_fit(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replayer, "_BYTES_AT_ONCE", 5)  # of payloads of 2 bytes each
    scene.letters.request_replay(scene.store(["t1", "t2"], 3))
    assert scene.step() == 2 and scene.passes == 1
    assert [len(scene.letters.replays_requested()), len(scene.written())] == [4, 2]
    monkeypatch.setattr(replayer, "_BYTES_AT_ONCE", 1)
    assert [scene.step(), scene.passes] == [1, 2]
    stops = iter([False, True])
    assert scene.run(lambda: next(stops)) == 1 and scene.passes == 3
    assert scene.run() == 2 and scene.step() == 0
    assert sorted(scene.written()) == sorted(f"incoming/{n} of {t}" for n in range(3) for t in ("t1", "t2"))


def test_an_interrupted_pass_is_done_again_with_the_same_letters_however_large(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.replay(scene.store(["out"], 3), killed="after")
    monkeypatch.setattr(replayer, "_BYTES_AT_ONCE", 1)
    assert scene.step() == 3 and scene.letters.count() == 0
    assert sorted(scene.written()) == [f"incoming/{n} of out" for n in range(3)]


def test_a_run_replays_one_pass_a_turn_and_none_while_it_stops(scene: Scene) -> None:
    scene.letters.request_replay(scene.store(["t1", "t2", "t3"], 1))
    tended: list[int] = []
    engine: Any = SimpleNamespace(
        feedback=[SimpleNamespace(tend=lambda: tended.append(scene.passes))], room=nullcontext(),
        replayer=scene, control=Interrupts(), _tidy_at=math.inf, _replays_at=0.0, _unprepared={},
    )  # fmt: skip
    for _ in range(2):
        Engine._tend(engine)
    assert tended == [0, 1] and scene.passes == 2
    engine.control.stop(60)
    Engine._tend(engine)
    assert scene.passes == 2 and scene.letters.count(statuses=("replaying",)) == 1
    engine.control = Interrupts(patience_s=1.0)  # `--once`: all that is left is done in one turn
    scene.letters.request_replay(scene.letters.list(statuses=("stored",)))
    Engine._tend(engine)
    assert scene.letters.count() == 0
