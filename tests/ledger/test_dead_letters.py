"""Dead letters: stored durably, one per event and stage, replayed, dropped, and accounted for."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from pyroaring import BitMap64

from signoff.errors import StateError
from signoff.ledger import (
    DeadLetter,
    DeadLetters,
    EventId,
    Ledger,
    Outcome,
    Resolution,
    RowOutcome,
    RowRef,
    RunLock,
    close_letters,
    drop_letters,
)
from signoff.ledger.resubmission import resubmit
from tests.ledger.attempts import attempt


def letter(number: int, stage: str = "table", reason: str = "bad") -> DeadLetter:
    return DeadLetter(f"incoming/{number}", stage, reason, b'{"n": 1}', {"file": "a"}, 900.0)


@pytest.fixture
def dead(ledger: Ledger, letters: DeadLetters) -> Ledger:
    """Event 0 delivered; 1 dead-lettered whole; 2 delivered to one sink and dead-lettered at `table`."""
    letters.add([letter(1), letter(2)])
    attempt(ledger, 0, 3, delivered=[0, 2], dead_lettered=[1, 2])
    return ledger


def test_letter_keeps_everything_it_was_stored_with(letters: DeadLetters, state: Path) -> None:
    letters.add([letter(1)])
    with DeadLetters(state / "dead_letters.db", readonly=True) as reader:
        (found,) = reader.list()
    assert (found.source, found.sequence, found.child, found.stage) == ("incoming", 1, "", "table")
    assert (found.payload, found.headers, found.received_at, found.at) == (
        b'{"n": 1}', {"file": "a"}, 900.0, 1000.0
    )  # fmt: skip


def test_same_letter_again_is_the_same_letter(letters: DeadLetters) -> None:
    letters.add([letter(1)])
    letters.add([letter(1, reason="worse"), letter(1, stage="parsed")])
    assert [(x.stage, x.reason, x.attempts) for x in letters.list()] == [
        ("table", "worse", 1),
        ("parsed", "bad", 1),
    ]


def test_letters_are_filtered_and_counted(letters: DeadLetters) -> None:
    letters.add([letter(1), letter(2, "parsed", "Not JSON"), letter(3, "parsed", "not json"), letter(4)])
    assert [x.sequence for x in letters.list(reason="not JSON")] == [2, 3]
    assert [x.sequence for x in letters.list(stage="table", limit=1)] == [1]
    assert letters.counts()["table", "bad"] == 2
    assert letters.count(stage="parsed") == 2
    assert letters.list(brief=True)[0].payload == b""


def test_replayed_letter_moves_its_event_to_delivered(dead: Ledger, letters: DeadLetters) -> None:
    letters.request_replay(letters.list())
    assert [x.sequence for x in letters.replays_requested()] == [1, 2]
    close_letters(
        dead,
        letters,
        [Resolution(x.event_id, x.stage, Outcome.DELIVERED) for x in letters.replays_requested()],
    )
    account = dead.account("incoming", 3)
    assert (account.delivered, account.dead_lettered) == (3, 0)
    assert not letters.replays_requested() and not letters.list()


def test_letter_that_fails_again_stays_with_the_new_reason(dead: Ledger, letters: DeadLetters) -> None:
    letters.request_replay([letter(1)])
    close_letters(dead, letters, [Resolution("incoming/1", "table", Outcome.DEAD_LETTERED, "still bad")])
    (found,) = letters.get("incoming/1")
    assert (found.status, found.reason, found.attempts) == ("stored", "still bad", 2)
    assert dead.account("incoming", 3).dead_lettered == 2


def test_replay_that_fails_at_a_later_stage_leaves_the_event_dead_lettered(
    dead: Ledger, letters: DeadLetters
) -> None:
    letters.request_replay([letter(1)])
    close_letters(
        dead, letters, [Resolution("incoming/1", "table", Outcome.DROPPED)], [letter(1, "archive", "full")]
    )
    assert dead.account("incoming", 3).dead_lettered == 2
    drop_letters(dead, letters, letters.get("incoming/1", "archive"))
    account = dead.account("incoming", 3)
    assert (account.dead_lettered, account.dropped) == (1, 1)


def test_dropped_letter_counts_as_dropped_unless_something_was_delivered(
    dead: Ledger, letters: DeadLetters
) -> None:
    assert drop_letters(dead, letters, letters.list()) == 2
    account = dead.account("incoming", 3)
    assert (account.delivered, account.dropped, account.dead_lettered) == (2, 1, 0)


def test_refused_event_stays_refused_when_its_letter_is_dropped(ledger: Ledger, letters: DeadLetters) -> None:
    letters.add([letter(0, "parsed")])
    attempt(ledger, 0, 1, refused=[0])
    drop_letters(ledger, letters, letters.list())
    assert ledger.account("incoming", 1).refused == 1


def test_letter_of_a_folded_batch_is_still_accounted_for(letters: DeadLetters, state: Path) -> None:
    with Ledger(state / "ledger.db", keep_batches=2) as ledger:
        letters.add([letter(1)])
        attempt(ledger, 0, 3, delivered=[0, 2], dead_lettered=[1])
        for start in range(3, 40):
            attempt(ledger, start, start + 1, delivered=[start])
        assert ledger.folded_upto("incoming") > 3
        assert drop_letters(ledger, letters, letters.list()) == 1
        account = ledger.account("incoming", 40)
    assert (account.dropped, account.dead_lettered) == (1, 0)


def test_letter_under_replay_is_not_dropped(dead: Ledger, letters: DeadLetters) -> None:
    stale = letters.list()
    letters.request_replay([letter(1)])
    assert drop_letters(dead, letters, stale) == 1
    assert letters.get("incoming/1")[0].status == "replaying"
    assert dead.account("incoming", 3).dead_lettered == 1


def test_letter_cannot_end_as_refused(dead: Ledger) -> None:
    with pytest.raises(ValueError, match="told already"):
        dead.resolve([Resolution("incoming/1", "table", Outcome.REFUSED)])


def test_letters_come_page_by_page(letters: DeadLetters, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("signoff.ledger.dead_letters.CHUNK", 3)
    letters.add(letter(number) for number in range(10))
    assert [x.sequence for x in letters.each()] == list(range(10))
    assert [x.sequence for x in letters.each(limit=4)] == [0, 1, 2, 3]


def test_large_letters_are_not_all_in_memory_at_once(
    letters: DeadLetters, monkeypatch: pytest.MonkeyPatch
) -> None:
    from signoff.ledger import dead_letters

    monkeypatch.setattr(dead_letters, "CHUNK_BYTES", 1000)
    read, known = list[object](), dead_letters.from_row
    monkeypatch.setattr(dead_letters, "from_row", lambda row: read.append(row) or known(row))
    letters.add(replace(letter(number), payload=b"x" * 600) for number in range(7))
    each = letters.each()
    assert (next(each).sequence, len(read)) == (0, 2)
    assert [x.sequence for x in each] == list(range(1, 7))
    assert letters.get("incoming/3", brief=True)[0].payload == b""


def test_event_ids_are_read_and_written() -> None:
    assert str(EventId.parse("incoming/17/3/high")) == "incoming/17/3/high"
    assert EventId.parse("incoming/17") == EventId("incoming", 17)
    for wrong in ("incoming", "incoming/", "incoming/x", "/3", "incoming/-1", ""):
        with pytest.raises(ValueError, match="not an event id"):
            EventId.parse(wrong)


def test_run_lock_names_its_holder_and_goes_with_it(state: Path) -> None:
    assert RunLock(state).held_by() is None
    with RunLock(state) as held:
        assert RunLock(state).held_by() == held.held_by()
        with pytest.raises(StateError, match="in use by the run with pid"):
            RunLock(state).acquire()
    assert RunLock(state).held_by() is None


def test_looking_at_the_lock_does_not_keep_a_run_from_starting(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("signoff.ledger.run_lock.PATIENCE_SECONDS", 60)
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            RunLock(state).held_by()

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        for _ in range(20):
            lock = RunLock(state)
            assert lock.try_acquire()
            lock.release()
    finally:
        over.set()
        watcher.join()


def test_letters_of_a_row_of_several_events_are_claimed_and_dropped_together(
    ledger: Ledger, letters: DeadLetters
) -> None:
    rows = ["incoming/0/~a", "incoming/2/~a", "incoming/1/~b", "incoming/3"]
    stored = [DeadLetter(row, "table", "bad", b"{}") for row in rows]
    letters.add([*stored, DeadLetter("incoming/2/~a", "other", "bad", b"{}")])
    dead = [RowRef(0, "~a"), RowRef(2, "~a"), RowRef(1, "~b"), RowRef(3)]
    ledger.open_batch("incoming", 0, 4, ["table"])
    outcomes = [RowOutcome(row, "table", Outcome.DEAD_LETTERED, "bad") for row in dead]
    ledger.record("incoming", 0, 4, delivered=BitMap64(), outcomes=outcomes, sinks={}, owed=BitMap64())
    assert [x.key for x in letters.whole(stored[1:2])] == [stored[1].key, stored[0].key]
    assert letters.request_replay(stored[2:]) == 2, "one has no others, one is of a single event"
    assert drop_letters(ledger, letters, stored[:1]) == 2
    assert [x.event_id for x in letters.list(stage="other")] == ["incoming/2/~a"], "of another stage"
    assert ledger.account("incoming", 4).dropped == 2


def test_history_is_forgotten_by_when_letters_were_closed_and_no_event_before_what_is_open_in_its_place(
    ledger: Ledger, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("signoff.ledger.dead_letters.KEEP_CLOSED", 2)
    clock = iter(range(1000, 2000))
    with DeadLetters(state / "dead_letters.db", now=lambda: float(next(clock))) as letters:
        letters.add([letter(number) for number in range(7)])
        attempt(ledger, 0, 7, dead_lettered=range(7))

        def close(number: int, reason: str = "delivered", further: Sequence[DeadLetter] = ()) -> None:
            (asked,) = letters.get(f"incoming/{number}", "table")
            letters.request_replay([asked])
            moved = bool(further)
            outcome = Outcome.DROPPED if moved else Outcome.DELIVERED
            close_letters(ledger, letters, [Resolution(*asked.key, outcome, reason, moved=moved)], further)

        def known() -> list[int]:
            return sorted(number for number in range(7) if letters.get(f"incoming/{number}", "table"))

        for number in (6, 5, 4):
            close(number)
        assert known() == [0, 1, 2, 3, 4, 5]  # 6 was closed first
        drop_letters(ledger, letters, letters.get("incoming/3"))
        assert known() == [0, 1, 2, 3, 4]
        close(0, 'failed at a later stage: "out": no', [letter(0, "out")])
        (old,) = letters.get("incoming/1")
        resubmit(ledger, letters, old, b"{}")
        close(2)
        letters.add([letter(7), letter(8)])
        drop_letters(ledger, letters, [*letters.get("incoming/7"), *letters.get("incoming/8")])
        assert known() == [0, 1]
        assert letters.get("incoming/1")[0].payload == old.payload
        drop_letters(ledger, letters, letters.list())  # what was open in their places
        assert known() == []
