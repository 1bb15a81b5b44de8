"""Corners of the account that random steps reach rarely, each nailed down by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from signoff.ledger import (
    DeadLetter,
    DeadLetters,
    Follower,
    Ledger,
    Outcome,
    Resolution,
    close_letters,
    drop_letters,
)
from signoff.ledger.audit import audit_state
from tests.ledger.attempts import attempt
from tests.ledger.test_audit import FakeLog


def letter(number: int, stage: str = "table") -> DeadLetter:
    return DeadLetter(f"incoming/{number}", stage, "bad", b"{}")


def fold_all(ledger: Ledger, start: int) -> None:
    for number in range(start, start + 20):
        attempt(ledger, number, number + 1, delivered=[number])
    assert ledger.folded_upto("incoming") > start


@pytest.fixture
def small(state: Path) -> Ledger:
    return Ledger(state / "ledger.db", keep_batches=2)


def test_folded_event_that_was_delivered_elsewhere_is_delivered_when_its_letter_is_dropped(
    small: Ledger, letters: DeadLetters
) -> None:
    with small:
        letters.add([letter(0), letter(1)])
        attempt(small, 0, 2, delivered=[0], dead_lettered=[0, 1])
        fold_all(small, 2)
        drop_letters(small, letters, letters.list())
        account = small.account("incoming", 22)
    assert (account.delivered, account.dropped, account.dead_lettered) == (21, 1, 0)


def test_replay_of_a_folded_letter_that_fails_later_keeps_its_event_dead_lettered(
    small: Ledger, letters: DeadLetters
) -> None:
    with small:
        letters.add([letter(0)])
        attempt(small, 0, 1, dead_lettered=[0])
        fold_all(small, 1)
        done = Resolution("incoming/0", "table", Outcome.DELIVERED)
        close_letters(small, letters, [done], [letter(0, "archive")])
        assert small.account("incoming", 21).dead_lettered == 1
        drop_letters(small, letters, letters.list())
        assert small.account("incoming", 21).delivered == 21


def test_late_delivery_does_not_lift_a_dropped_event_of_a_batch_that_is_still_open(
    ledger: Ledger, state: Path
) -> None:
    attempt(ledger, 0, 2, owed=[1])
    attempt(ledger, 0, 2, delivered=[0], owed=[1])
    assert ledger.account("incoming", 2).dropped == 1
    assert audit_state(state, ["incoming"], lambda _: FakeLog(2)).balanced


def test_letter_dropped_while_its_event_is_owed_is_open_again_when_the_row_fails_again(
    ledger: Ledger, letters: DeadLetters
) -> None:
    for owed in ([0], []):
        letters.add([letter(0)])
        attempt(ledger, 0, 1, dead_lettered=[0], owed=owed)
        if owed:
            drop_letters(ledger, letters, letters.list())
    assert ledger.account("incoming", 1).dead_lettered == 1
    assert letters.count() == 1


def test_worst_outcome_of_a_row_stands_when_the_attempt_is_repeated(ledger: Ledger) -> None:
    attempt(ledger, 0, 2, refused=[0], dead_lettered=[1], owed=[0, 1])
    attempt(ledger, 0, 2, dropped=[0, 1])
    account = ledger.account("incoming", 2)
    assert (account.refused, account.dead_lettered) == (1, 1)


def test_refused_event_is_not_told_while_another_sink_owes_it(ledger: Ledger) -> None:
    follower = Follower(ledger, "incoming")
    attempt(ledger, 0, 3, refused=[0, 1], owed=[0])
    assert set(follower.poll().refused) == {1}
    _, (found,) = ledger.settlements("incoming", 0)
    assert set(found.refused) == {1}
