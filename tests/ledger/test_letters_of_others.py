"""A dead letter stands for all events its row was made from, in front of all logs it came through."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyroaring import BitMap64

from signoff.ledger import DeadLetter, DeadLetters, Ledger, Outcome, RowOutcome, RowRef
from signoff.ledger.audit import audit_state
from signoff.ledger.batches import HandedOnOutcome
from signoff.ledger.dead_letters import close_letters, drop_letters
from signoff.ledger.outcome import Resolution
from tests.ledger.attempts import attempt
from tests.ledger.test_audit import FakeLog
from tests.ledger.test_handed_on import handed

LETTER = "inner.buffer/0"


@pytest.fixture
def behind(ledger: Ledger, letters: DeadLetters) -> Ledger:
    """A row of two events, which came through two logs, ends as a dead letter at `table`."""
    letters.add([DeadLetter(LETTER, "table", "bad", b"{}")])
    attempt(ledger, 0, 3, owed=[0, 1, 2], sinks={"table": handed(0, 1, 2)})
    attempt(ledger, 0, 1, source="outer.buffer", owed=[0], sinks={"table": handed(0)})
    attempt(ledger, 0, 1, source="inner.buffer", dead_lettered=[0])
    return ledger


def bring(ledger: Ledger) -> None:
    """What the bearers of the two links do, from the last to the first."""
    for source, end, origins in (("outer.buffer", 1, [0]), ("incoming", 3, [0, 1])):
        outcomes = [
            RowOutcome(RowRef(n), "table", Outcome.DEAD_LETTERED, "bad", letter=LETTER) for n in origins
        ]
        asked = BitMap64(range(end))
        ledger.release(
            source, 0, end, "table", HandedOnOutcome(asked, BitMap64(), asked - BitMap64(origins), outcomes)
        )


def counts(ledger: Ledger) -> tuple[int, int, int]:
    account = ledger.account("incoming", 3)
    assert account.balanced
    return account.delivered, account.dropped, account.dead_lettered


def findings(state: Path) -> list[str]:
    heads = {"incoming": 3, "outer.buffer": 1, "inner.buffer": 1}
    report = audit_state(state, ["incoming"], lambda path: FakeLog(heads[path.name]))
    return [finding.code for finding in report.findings]


def test_the_letter_is_that_of_all_of_them(behind: Ledger, letters: DeadLetters, state: Path) -> None:
    bring(behind)
    assert counts(behind) == (1, 0, 2)
    assert findings(state) == []
    drop_letters(behind, letters, letters.get(LETTER))
    assert counts(behind) == (1, 2, 0)
    assert behind.account("outer.buffer", 1).dropped == behind.account("inner.buffer", 1).dropped == 1
    assert findings(state) == []


def test_its_replay_delivers_all_of_them(behind: Ledger, letters: DeadLetters, state: Path) -> None:
    bring(behind)
    close_letters(behind, letters, [Resolution(LETTER, "table", Outcome.DELIVERED)])
    assert counts(behind) == (3, 0, 0)
    assert behind.account("outer.buffer", 1).delivered == 1
    assert findings(state) == []


def test_a_letter_its_replay_gives_rise_to_stands_for_them_too(
    behind: Ledger, letters: DeadLetters, state: Path
) -> None:
    bring(behind)
    further = [DeadLetter(f"{LETTER}/{child}", "later", "worse", b"{}") for child in (0, 1)]
    close_letters(behind, letters, [Resolution(LETTER, "table", Outcome.DELIVERED)], further)
    assert counts(behind) == (1, 0, 2)
    assert findings(state) == []
    drop_letters(behind, letters, letters.get(f"{LETTER}/0"))
    assert counts(behind) == (1, 0, 2), "the other one stands for them still"
    close_letters(behind, letters, [Resolution(f"{LETTER}/1", "later", Outcome.DELIVERED)])
    assert counts(behind) == (3, 0, 0)
    assert findings(state) == []


@pytest.mark.parametrize("outcome", [Outcome.DELIVERED, Outcome.DROPPED])
def test_a_letter_that_is_closed_before_they_have_heard_of_it_is_none_for_them(
    behind: Ledger, letters: DeadLetters, state: Path, outcome: Outcome
) -> None:
    close_letters(behind, letters, [Resolution(LETTER, "table", outcome)])
    bring(behind)
    assert counts(behind) == ((3, 0, 0) if outcome == Outcome.DELIVERED else (1, 2, 0))
    assert findings(state) == []


def test_a_letter_of_a_row_that_was_united_anew_stands_for_them_too(
    behind: Ledger, letters: DeadLetters, state: Path
) -> None:
    bring(behind)
    further = [DeadLetter(f"{LETTER}/~ab", "later", "worse", b"{}")]
    close_letters(behind, letters, [Resolution(LETTER, "table", Outcome.DROPPED)], further)
    assert counts(behind) == (1, 0, 2)
    close_letters(behind, letters, [Resolution(f"{LETTER}/~ab", "later", Outcome.DELIVERED)])
    assert counts(behind) == (3, 0, 0)
    assert findings(state) == []
