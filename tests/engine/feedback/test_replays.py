"""A replayed letter whose row is in a buffer is decided by what becomes of the row there: without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyroaring import BitMap64

from signoff.engine.feedback.replays import letters_of, tell_letters
from signoff.engine.replay.batch_name import new_replay, replay_name, replay_ref
from signoff.ledger import DeadLetter, DeadLetters, Ledger, Outcome, RowOutcome, RowRef
from signoff.ledger.batch_state import Done
from signoff.ledger.batches import HandedOnOutcome
from signoff.ledger.dead_letters import close_letters
from signoff.ledger.letter import MOVED
from signoff.ledger.outcome import Resolution
from signoff.link.notes import Handed


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger(tmp_path / "ledger.db") as found:
        yield found


@pytest.fixture
def letters(tmp_path: Path) -> Iterator[DeadLetters]:
    with DeadLetters(tmp_path / "dead_letters.db") as found:
        yield found


def handed_on(
    ledger: Ledger, letters: DeadLetters, *sinks: str, stage: str = "rows"
) -> tuple[DeadLetter, Handed]:
    """A letter of the step `rows` that was replayed, and whose row is in the buffer of `hook`."""
    ledger.open_batch("incoming", 0, 1, ["hook"])
    dead = RowOutcome(RowRef(0), stage, Outcome.DEAD_LETTERED, "not JSON")
    ledger.record("incoming", 0, 1, delivered=BitMap64(), outcomes=[dead],
                  sinks={"hook": Done()}, owed=BitMap64())  # fmt: skip
    letter = DeadLetter("incoming/0", stage, "not JSON", b"{}")
    letters.add([letter])
    letters.request_replay([letter])
    batch = new_replay("incoming", [letter])
    letters.claim([letter], replay_name(batch))
    letters.hand_on([letter], sinks or ("hook",), "")
    return letter, Handed("hook", batch, 0, 1, BitMap64([0]))


def tell(
    ledger: Ledger, letters: DeadLetters, handed: Handed, *outcomes: RowOutcome,
    delivered: bool = False, outside: bool = False, still: bool = False,
) -> bool:  # fmt: skip
    answer = HandedOnOutcome(
        BitMap64([0]), BitMap64([0] if still else []), BitMap64([0] if delivered else []), outcomes
    )
    return tell_letters(ledger, letters, letters_of(letters, handed), handed, answer, outside=outside)


def state(ledger: Ledger, letters: DeadLetters) -> tuple[str, str, dict[str, int]]:
    (known,) = letters.get("incoming/0", "rows")
    counts = {
        name: n for name, n in ledger.account("incoming", 1).as_dict().items() if n and name != "received"
    }
    return known.status, known.result or known.reason, counts


def test_it_is_open_until_its_row_is_settled_and_then_delivered(ledger: Ledger, letters: DeadLetters) -> None:
    _, handed = handed_on(ledger, letters)
    assert tell(ledger, letters, handed, still=True), "it waits"
    assert state(ledger, letters) == ("handed", "not JSON", {"dead_lettered": 1})
    assert letters.replays_requested() == []
    assert not tell(ledger, letters, handed, delivered=True)
    assert state(ledger, letters) == ("replayed", "delivered", {"delivered": 1})
    assert not tell(ledger, letters, handed, delivered=True), "may be told twice"


@pytest.mark.parametrize("outside", [False, True])
def test_what_is_refused_there_is_a_letter_of_the_sink_and_not_of_what_had_it_already(
    ledger: Ledger, letters: DeadLetters, outside: bool
) -> None:
    _, handed = handed_on(ledger, letters)
    outcome = Outcome.DEAD_LETTERED if outside else Outcome.REFUSED
    refused = RowOutcome(RowRef(0, "2"), "hook", outcome, "no")
    tell(ledger, letters, handed, refused, outside=outside)
    status, result, counts = state(ledger, letters)
    assert (status, counts) == ("replayed", {"dead_lettered": 1}) and "no" in result
    (new,) = letters.list()
    assert (new.event_id, new.stage, new.reason) == ("incoming/0/2", "hook", '"hook" refused it: no')
    assert (new.payload, new.first_reason) == (b"{}", 'at "rows": not JSON')
    tell(ledger, letters, handed, refused, outside=outside)
    assert [letter.key for letter in letters.list()] == [new.key], "may be told twice"
    close_letters(ledger, letters, [Resolution(*new.key, Outcome.DELIVERED)])
    assert state(ledger, letters)[2] == {"delivered": 1}


def test_a_letter_of_the_sink_itself_is_stored_again_and_its_next_replay_is_another_batch(
    ledger: Ledger, letters: DeadLetters
) -> None:
    letter, handed = handed_on(ledger, letters, stage="hook")
    tell(ledger, letters, handed, RowOutcome(RowRef(0), "hook", Outcome.REFUSED, "no"))
    (known,) = letters.list()
    assert (known.key, known.status, known.attempts) == (letter.key, "stored", 2)
    assert known.reason == '"hook" refused it: no' and letters_of(letters, handed) == []


def test_what_is_refused_behind_one_sink_does_not_end_the_wait_for_another(
    ledger: Ledger, letters: DeadLetters
) -> None:
    _, handed = handed_on(ledger, letters, "hook", "other")
    tell(ledger, letters, handed, RowOutcome(RowRef(0), "hook", Outcome.REFUSED, "no"))
    assert [(x.stage, x.status) for x in letters.list()] == [("rows", "handed"), ("hook", "stored")]
    other = Handed("other", handed.batch, 3, 4, BitMap64([0]))
    tell(ledger, letters, other, delivered=True)
    status, result, counts = state(ledger, letters)
    assert (status, counts) == ("replayed", {"dead_lettered": 1}) and result.startswith(MOVED)
    close_letters(ledger, letters, [Resolution("incoming/0", "hook", Outcome.DROPPED)])
    assert state(ledger, letters)[2] == {"delivered": 1}, "by the other sink"


def test_what_is_dropped_there_is_dropped_and_says_where(ledger: Ledger, letters: DeadLetters) -> None:
    _, handed = handed_on(ledger, letters)
    tell(ledger, letters, handed, RowOutcome(RowRef(0), "hook", Outcome.DROPPED, "the buffer is full"))
    assert state(ledger, letters) == (
        "replayed",
        'dropped by "hook" (the buffer is full)',
        {"dropped": 1},
    )


def test_a_letter_there_stands_for_it_until_that_is_closed(ledger: Ledger, letters: DeadLetters) -> None:
    _, handed = handed_on(ledger, letters)
    behind = DeadLetter("hook.buffer/0", "hook", "422", b"{}", message_id="incoming/0")
    letters.add([behind])
    outcome = RowOutcome(RowRef(0), "hook", Outcome.DEAD_LETTERED, "422", letter="hook.buffer/0")
    tell(ledger, letters, handed, outcome)
    status, result, counts = state(ledger, letters)
    assert (status, counts) == ("replayed", {"dead_lettered": 1}) and "422" in result
    (row,) = [row for row in ledger.rows("incoming", 0) if not row.resolved]
    assert (row.stage, row.letter) == ("hook", "hook.buffer/0")


def test_with_rows_behind_two_sinks_the_last_answer_decides(ledger: Ledger, letters: DeadLetters) -> None:
    _, handed = handed_on(ledger, letters, "hook", "other")
    tell(ledger, letters, handed, delivered=True)
    assert state(ledger, letters) == ("handed", "delivered", {"dead_lettered": 1})
    other = Handed("other", handed.batch, 3, 4, BitMap64([0]))
    tell(ledger, letters, other, RowOutcome(RowRef(0), "other", Outcome.DROPPED, "full"))
    assert state(ledger, letters) == ("replayed", "delivered", {"delivered": 1})


def test_a_replay_that_was_interrupted_is_the_same_batch_again_and_its_rows_are_kept_to_be_recognised(
    ledger: Ledger, letters: DeadLetters
) -> None:
    letter, handed = handed_on(ledger, letters)
    assert replay_ref("incoming", replay_name(handed.batch)) == handed.batch
    letters.add([DeadLetter("incoming/1", "rows", "no", b"")])
    letters.request_replay(letters.list())
    _interrupted(letters, letter)
    assert tell(ledger, letters, handed, delivered=True), "the note of the link stays until it is replayed"
    first, second = letters.replays_requested()
    assert (first.batch, second.batch) == (replay_name(handed.batch), ""), "not one batch with others"


def _interrupted(letters: DeadLetters, letter: DeadLetter) -> None:
    """As a kill leaves it between the sink's commit and the note that the row was handed on."""
    with letters._store.write() as db:
        db.execute(
            "UPDATE letters SET status = 'replaying', handed = '' WHERE event_id = ?", (letter.event_id,)
        )
