"""Replayed letters of which nobody can say what became of them: they are replayed again as the same batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyroaring import BitMap64

from signoff.engine.plan.task_report import ReportKind, TaskReport
from signoff.engine.replay import replayer
from signoff.engine.replay.replayer import Replayer
from signoff.errors import TransientError
from signoff.ledger import DeadLetters, Ledger
from signoff.ledger.letter import DeadLetter
from signoff.ledger.sequences import to_bytes
from signoff.pipeline.model import SinkConfig
from signoff.sinks.contract import BatchRef

OTHER = [DeadLetter("in/5", "parsed", "bad", b"5")]
LETTERS = [DeadLetter(f"in/{n}", "parsed", "bad", b"%d" % n) for n in range(2)]


class Sink:
    """Publishes batches by name, as `files` does; `failing`: what a commit raises once it has published."""

    atomic = takes_back = True
    observes = False

    def __init__(self) -> None:
        self.published: dict[str, list[bytes]] = {}
        self.failing: Exception | None = None
        self.stuck = False

    def commit(self, batch: BatchRef, parts: Sequence[bytes]) -> None:
        if not parts:
            if self.stuck:
                raise TransientError("permission denied")
            self.published.pop(batch.key, None)
            return
        self.published[batch.key] = list(parts)
        if self.failing is not None:
            raise self.failing


class Replay:
    """A `Replayer` whose pass hands every row to two sinks."""

    def __init__(self, place: Path, patch: pytest.MonkeyPatch) -> None:
        self.letters, self.ledger = DeadLetters(place / "dead.db"), Ledger(place / "ledger.db")
        self.letters.add(LETTERS)
        self.sinks = {"a": Sink(), "b": Sink()}
        graph: Any = SimpleNamespace(
            state=place,
            sources={"in"},
            sinks=self.sinks,
            nodes={
                "in": SimpleNamespace(kind="source"),
                "parsed": SimpleNamespace(kind="transform", label='"parsed"'),
            },
            downstream=lambda name: {"parsed", "a", "b"} if name == "in" else {"a", "b"},
        )
        entries = {
            name: SimpleNamespace(sink=sink, config=SinkConfig(type="toy"))
            for name, sink in self.sinks.items()
        }
        shared: Any = SimpleNamespace(
            graph=graph,
            letters=self.letters,
            ledger=self.ledger,
            sinks=entries,
            spark=SimpleNamespace(createDataFrame=lambda table: table),
        )
        plan = SimpleNamespace(sinks=self.sinks)
        patch.setattr(replayer, "compile_source", lambda *_, **__: plan)
        patch.setattr(replayer, "windows_at", lambda *_: {})
        patch.setattr(replayer, "stage_policies", lambda *_: ())
        patch.setattr(replayer, "uniting_steps", lambda _: frozenset())
        patch.setattr(Replayer, "_events", lambda _, __, letters: [x.sequence for x in letters])
        patch.setattr(Replayer, "_pass", self._pass)
        self.replayer = Replayer([shared])

    def _pass(self, plan: Any, batch: BatchRef, asked: Any, **_: object) -> list[TaskReport]:
        (rows,) = {state.wanted_rows for state in asked.values()}
        signed = to_bytes(BitMap64(row.sequence for row in rows))
        heard = [TaskReport("parsed", ReportKind.REACHED, row.sequence, "") for row in rows]
        for name in asked:
            heard.append(TaskReport(name, ReportKind.SIGNED, number=len(rows), blob=signed))
            heard.append(TaskReport(name, ReportKind.PART, blob=signed))
        return heard

    def run(self, letters: Sequence[DeadLetter] = LETTERS) -> set[str]:
        """Replay them; returns their status."""
        self.letters.request_replay(letters)
        self.replayer.run()
        return {letter.status for letter in self.letters.list(statuses=("stored", "replaying", "replayed"))}

    @property
    def published(self) -> list[int]:
        return [len(sink.published) for sink in self.sinks.values()]


@pytest.fixture
def replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Replay]:
    found = Replay(tmp_path, monkeypatch)
    found.ledger.open_batch("in", 0, 10, ["a", "b"])
    yield found
    found.letters.close()
    found.ledger.close()


def test_what_one_sink_has_published_is_replaced_if_another_breaks_off_the_replay(replay: Replay) -> None:
    replay.sinks["b"].failing = ValueError("a mistake in a sink")
    assert replay.run() == {"stored"} and replay.published == [1, 1]
    replay.sinks["b"].failing = None
    replay.letters.add(OTHER)
    # All that were replayed together are replayed together again: their rows may be at some sinks.
    replay.letters.request_replay(replay.letters.get("in/0"))
    assert [x.sequence for x in replay.letters.replays_requested()] == [0, 1]
    replay.replayer.run()
    assert replay.published == [1, 1] and not replay.letters.replays_requested()
    assert [x.sequence for x in replay.letters.list(statuses=("stored",))] == [5]


def test_what_a_sink_could_not_publish_is_taken_back_before_the_letters_are_stored(replay: Replay) -> None:
    replay.sinks["b"].failing = TransientError("disk full")
    assert replay.run() == {"stored"} or replay.letters.list(stage="b"), "what failed has a letter"
    assert replay.published == [1, 0]


def test_letters_whose_rows_cannot_be_taken_back_are_replayed_as_the_same_batch(replay: Replay) -> None:
    replay.sinks["b"].failing, replay.sinks["b"].stuck = TransientError("disk full"), True
    for _ in range(2):
        assert replay.run() == {"stored"} and replay.published == [1, 1]
        assert all("disk full" in letter.reason for letter in replay.letters.list())
    replay.sinks["b"].failing = None
    assert replay.run() == {"replayed"} and replay.published == [1, 1]


def test_letters_of_a_pass_that_failed_before_any_commit_are_another_batch_next_time(
    replay: Replay, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise ValueError("the plan failed")

    with monkeypatch.context() as patch:
        patch.setattr(Replayer, "_pass", fails)
        assert replay.run() == {"stored"}
    assert {letter.batch for letter in replay.letters.list()} == {""}
