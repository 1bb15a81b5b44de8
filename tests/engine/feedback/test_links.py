"""What became of rows that were handed on is brought back to their events, once, whenever it is known."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyroaring import BitMap64

from signoff.engine.feedback.links import LedgerOutcomes, LinkFeedback
from signoff.engine.replay.batch_name import new_replay, replay_name
from signoff.ledger import DeadLetter, DeadLetters, Ledger, Outcome, RowOutcome, RowRef
from signoff.ledger.batch_state import Done, HandedOn, OwesRows, SinkState, Wait
from signoff.link.handover import HandoverConfig, HandoverSink, LinkPlace
from signoff.link.notes import LinkNotes
from signoff.sinks.contract import BatchRef, Part

EVENTS = BatchRef("incoming", 0, 10)
ALL = BitMap64(range(10))


class Scene:
    """Ten events of `incoming`, a sink `table` with a buffer, and what is behind it."""

    def __init__(self, directory: Path) -> None:
        place = LinkPlace(directory / "log", directory / "link")
        self.ledger = Ledger(directory / "ledger.db")
        self.sink = HandoverSink("table", place, 1024**2, "block")
        self.sink.prepare()
        self.notes = LinkNotes(place.database)
        config = HandoverConfig(
            place=place, sink="table", max_bytes=1, when_full="block", awaited_by=frozenset({"incoming"})
        )
        answers = LedgerOutcomes(self.ledger, "table.buffer")
        self.feedback = LinkFeedback(config, self.ledger, self.notes, answers, {}, outside=False)
        self.ledger.open_batch("incoming", 0, 10, ["table"])

    def hand_on(self, *events: int, batch: BatchRef = EVENTS, child: str = "") -> None:
        writer = self.sink.open(Part(batch, 0, 0))
        ids = [f"incoming/{n}{child}" for n in events]
        writer.write(pa.record_batch({"event_id": ids, "n": events, "_origin": pa.array(events, pa.int64())}))
        part = writer.close()
        assert part is not None
        self.sink.commit(batch, [part])

    def record(self, *handed: int, owed: BitMap64 = ALL, waiting: SinkState | None = None) -> None:
        """`waiting`: how far the rows are that wait for a step."""
        state = HandedOn(BitMap64(handed), attempts=1) if handed else Done(attempts=1)
        self.ledger.record(
            "incoming", 0, 10, delivered=BitMap64(), outcomes=[], sinks={"table": state}, owed=owed,
            waits={Wait("table", "ask"): waiting} if waiting else None,
        )  # fmt: skip

    def settle(self, start: int, end: int, *refused: int, delivered: BitMap64 | None = None) -> None:
        """A batch of the buffer is settled: all rows delivered, but those that are refused."""
        self.ledger.open_batch("table.buffer", start, end, ["table"])
        outcomes = [RowOutcome(RowRef(n), "table", Outcome.REFUSED, "no") for n in refused]
        taken = BitMap64(range(start, end)) - BitMap64(refused) if delivered is None else delivered
        self.ledger.record(
            "table.buffer", start, end, delivered=taken, outcomes=outcomes,
            sinks={"table": Done()}, owed=BitMap64(),
        )  # fmt: skip

    @property
    def owed(self) -> list[int]:
        known = self.ledger.batch("incoming", 0, 10)
        assert known is not None
        return list(known.owed)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.feedback.close()
    made.sink.release()
    made.ledger.close()


def test_events_are_settled_as_their_rows_are(scene: Scene) -> None:
    scene.hand_on(*range(10))
    scene.record(*range(10))
    scene.settle(0, 4)
    scene.feedback.tend()
    assert scene.owed == [4, 5, 6, 7, 8, 9]
    assert scene.feedback.needed_from() == 0, "the log is needed to tell the rest"
    scene.settle(4, 10, 5)
    scene.feedback.tend()
    account = scene.ledger.account("incoming", 10)
    assert (account.delivered, account.refused, scene.owed) == (9, 1, [])
    assert not scene.notes.each()


def test_a_refusal_counts_although_another_sink_behind_took_the_row(scene: Scene) -> None:
    scene.hand_on(*range(10))
    scene.record(*range(10))
    scene.settle(0, 10, 3, delivered=ALL)
    scene.feedback.tend()
    assert scene.ledger.account("incoming", 10).refused == 1


def test_an_answer_before_the_record_waits_for_it(scene: Scene) -> None:
    scene.hand_on(*range(10))
    scene.settle(0, 10)
    scene.feedback.tend()
    assert len(scene.owed) == 10
    scene.record(*range(10))
    scene.feedback.tend()
    assert scene.owed == []


def test_rows_that_waited_for_a_step_are_not_forgotten_before_they_are_recorded(scene: Scene) -> None:
    scene.record(waiting=OwesRows(tuple(map(RowRef, range(10))), attempts=1))
    alone = BatchRef("incoming", 0, 10, replay=7)
    scene.hand_on(*range(10), batch=alone)
    scene.feedback.tend()
    scene.settle(0, 10)
    scene.feedback.tend()
    assert scene.notes.each(), "the ledger does not know yet that they were handed on"
    scene.record(*range(10), waiting=Done())
    scene.feedback.tend()
    assert scene.owed == [] and not scene.notes.each()


def test_a_row_that_came_before_a_kill_and_waits_for_a_step_since_is_handed_on_once(scene: Scene) -> None:
    scene.hand_on(*range(10))
    scene.settle(0, 10)
    scene.hand_on(*range(9))
    scene.record(*range(9), waiting=OwesRows((RowRef(9),), attempts=1))
    scene.feedback.tend()
    assert scene.owed == [9] and scene.notes.each(), "it is known by its note"
    scene.hand_on(9, batch=BatchRef("incoming", 0, 10, replay=7))
    assert [len(part.origins) for part in scene.notes.each()] == [10], "it is in the log already"
    scene.record(9, owed=ALL, waiting=Done())
    scene.feedback.tend()
    assert scene.owed == [] and not scene.notes.each()


def test_what_was_answered_meanwhile_is_not_brought_back_by_a_round_that_knew_less(scene: Scene) -> None:
    scene.hand_on(*range(9))
    scene.record(*range(9), waiting=OwesRows((RowRef(9),), attempts=1))
    scene.settle(0, 9)
    scene.feedback.tend()
    assert scene.owed == [9]
    scene.hand_on(9, batch=BatchRef("incoming", 0, 10, replay=7))
    scene.record(9, owed=ALL, waiting=Done())
    scene.settle(9, 10)
    scene.feedback.tend()
    assert scene.owed == [] and not scene.notes.each()


def test_a_batch_that_expired_before_it_was_recorded_does_not_keep_the_log(scene: Scene) -> None:
    scene.hand_on(*range(10))
    scene.ledger.expire("incoming", dict.fromkeys(range(10), "late"))
    scene.record(*range(10))
    scene.settle(0, 10)
    scene.feedback.tend()
    assert not scene.notes.each()


def test_a_batch_that_comes_again_with_more_rows_hands_on_what_is_missing(scene: Scene) -> None:
    scene.hand_on(*range(9))
    scene.hand_on(*range(10))
    assert [len(part.origins) for part in scene.notes.each()] == [9, 1]
    scene.record(*range(10))
    scene.settle(0, 10)
    scene.feedback.tend()
    assert scene.owed == [] and scene.ledger.account("incoming", 10).delivered == 10


def test_a_replay_that_no_letter_is_of_any_more_says_nothing_of_a_batch_with_the_same_range(
    scene: Scene, tmp_path: Path
) -> None:
    with DeadLetters(tmp_path / "dead_letters.db") as letters:
        scene.feedback.letters = letters
        taken_back = [DeadLetter(f"incoming/{n}", "step", "no", b"") for n in (0, 9)]
        scene.hand_on(0, 9, batch=new_replay("incoming", taken_back))
        scene.hand_on(*range(10))
        scene.record(*range(10))
        scene.settle(0, 2, 0)
        scene.feedback.tend()
        assert scene.owed == list(range(10)), "their own rows are not settled"
        assert [part.first for part in scene.notes.each()] == [2], "nobody waits for the others"
        scene.settle(2, 12)
        scene.feedback.tend()
    account = scene.ledger.account("incoming", 10)
    assert (account.delivered, account.refused, scene.owed) == (10, 0, [])


def test_a_letter_whose_rows_are_in_two_parts_is_closed_by_the_last_of_them(
    scene: Scene, tmp_path: Path
) -> None:
    dead = RowOutcome(RowRef(0), "step", Outcome.DEAD_LETTERED, "no")
    scene.ledger.record("incoming", 0, 10, delivered=ALL - BitMap64([0]), outcomes=[dead],
                        sinks={"table": Done()}, owed=BitMap64())  # fmt: skip
    with DeadLetters(tmp_path / "dead_letters.db") as letters:
        scene.feedback.letters = letters
        letters.add([letter := DeadLetter("incoming/0", "step", "no", b"{}")])
        letters.request_replay([letter])
        batch = new_replay("incoming", [letter])
        letters.claim([letter], replay_name(batch))
        scene.hand_on(0, batch=batch, child="/0")
        scene.hand_on(0, batch=batch, child="/1")  # killed, and the step gives another row the second time
        letters.hand_on([letter], ["table"], "")
        scene.settle(0, 1)
        scene.feedback.tend()
        assert letters.get(*letter.key)[0].status == "handed" and len(scene.notes.each()) == 2
        scene.settle(1, 2, 1)
        scene.feedback.tend()
        assert letters.get(*letter.key)[0].status == "replayed"
        (known,) = letters.list()
    assert (known.key, known.reason) == (("incoming/0/1", "table"), '"table" refused it: no')
    assert scene.ledger.account("incoming", 10).dead_lettered == 1 and not scene.notes.each()


def test_a_letter_of_whose_replayed_row_the_link_knows_nothing_is_given_back_to_the_sink(
    scene: Scene, tmp_path: Path
) -> None:
    dead = [RowOutcome(RowRef(n), "step", Outcome.DEAD_LETTERED, "no") for n in (0, 1)]
    scene.ledger.record("incoming", 0, 10, delivered=ALL - BitMap64([0, 1]), outcomes=dead,
                        sinks={"table": Done()}, owed=BitMap64())  # fmt: skip
    with DeadLetters(tmp_path / "dead_letters.db") as letters:
        scene.feedback.letters = letters
        for number in (0, 1):
            letters.add([letter := DeadLetter(f"incoming/{number}", "step", "no", b"{}")])
            letters.request_replay([letter])
            batch = new_replay("incoming", [letter])
            letters.claim([letter], replay_name(batch))
            if number:
                scene.hand_on(number, batch=batch)
            letters.hand_on([letter], ["table"], "")
        scene.feedback.tend()
        found = [(x.event_id, x.stage, x.status) for x in letters.list()]
        assert found == [("incoming/1", "step", "handed"), ("incoming/0", "table", "stored")]
    assert scene.ledger.account("incoming", 10).dead_lettered == 2
