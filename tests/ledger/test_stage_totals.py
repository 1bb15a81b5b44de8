"""Where rows left the pipeline: counted once each, in a table that stays small."""

from __future__ import annotations

import pytest
from pyroaring import BitMap64

from signoff.ledger import Ledger, Outcome, RowOutcome, RowRef
from signoff.ledger.batch_state import Done, OwesAll
from signoff.ledger.stage_totals import MOST_REASONS, OTHER, group

DONE = Done()
OWES = OwesAll(attempts=1, error="down", since=1.0)


def left(ledger: Ledger) -> dict[tuple[str, str, str], int]:
    return {(d.stage, d.outcome.value, d.reason): d.rows for d in ledger.departures()}


def outcome(sequence: int, reason: str, kind: Outcome = Outcome.DROPPED, child: str = "") -> RowOutcome:
    return RowOutcome(RowRef(sequence, child), "parsed", kind, reason)


def record(ledger: Ledger, start: int, end: int, *outcomes: RowOutcome, owed=(), filtered=None):
    ledger.open_batch("incoming", start, end, ["table"])
    return ledger.record(
        "incoming", start, end,
        delivered=BitMap64(), outcomes=outcomes, sinks={"table": OWES if owed else DONE},
        owed=BitMap64(owed), filtered=filtered,
    )  # fmt: skip


def test_rows_are_counted_by_stage_outcome_and_reason(ledger: Ledger) -> None:
    record(
        ledger, 0, 10,
        outcome(1, "bad"), outcome(2, "bad"), outcome(2, "bad", child="3"),
        outcome(4, "bad", Outcome.DEAD_LETTERED), outcome(5, "worse", Outcome.REFUSED),
        filtered={"chosen": (6, "the condition does not hold")},
    )  # fmt: skip
    record(ledger, 10, 20, outcome(11, "bad"), filtered={"chosen": (3, "the condition does not hold")})
    assert left(ledger) == {
        ("chosen", "dropped", "the condition does not hold"): 9,
        ("parsed", "dropped", "bad"): 4,
        ("parsed", "dead_lettered", "bad"): 1,
        ("parsed", "refused", "worse"): 1,
    }


def test_a_row_named_again_by_a_later_attempt_is_counted_once(ledger: Ledger) -> None:
    record(ledger, 0, 10, outcome(1, "bad"), owed=[1, 5])
    record(ledger, 0, 10, outcome(1, "bad"), outcome(5, "bad"), owed=[5])
    assert left(ledger) == {("parsed", "dropped", "bad"): 2}


def test_what_is_to_be_tried_again_has_not_left(ledger: Ledger) -> None:
    record(ledger, 0, 10, outcome(1, "down", Outcome.FAILED), owed=[1])
    assert left(ledger) == {}
    record(ledger, 0, 10, outcome(1, "gave up", Outcome.DEAD_LETTERED))
    assert left(ledger) == {("parsed", "dead_lettered", "gave up"): 1}


def test_what_comes_after_a_batch_is_settled_is_not_counted(ledger: Ledger) -> None:
    record(ledger, 0, 10)
    record(ledger, 0, 10, outcome(1, "late"), filtered={"chosen": (6, "")})
    assert left(ledger) == {}


def test_the_totals_outlive_the_batches_they_are_of(state) -> None:
    with Ledger(state / "ledger.db", keep_batches=2) as ledger:
        for number in range(50):
            record(ledger, number, number + 1, outcome(number, "bad"))
        assert ledger.rows("incoming", 0) == [], "it is folded"
        assert left(ledger) == {("parsed", "dropped", "bad"): 50}


def test_messages_that_differ_in_their_values_are_one_reason(ledger: Ledger) -> None:
    record(
        ledger,
        0,
        3_000,
        *(outcome(n, f'value "{n}x" of column n at byte {n} is no date') for n in range(3_000)),
    )
    assert left(ledger) == {("parsed", "dropped", 'value "…" of column n at byte # is no date'): 3_000}


def test_the_number_of_reasons_is_bounded_and_the_rest_is_counted_as_other(ledger: Ledger) -> None:
    names = [f"{a}{b}" for a in "abcdefghij" for b in "abcdefghij"]
    record(ledger, 0, 200, *(outcome(n, f"reason {name}") for n, name in enumerate(names)))
    found = left(ledger)
    assert len(found) == MOST_REASONS + 1 and sum(found.values()) == 100
    assert found["parsed", "dropped", OTHER] == 100 - MOST_REASONS


@pytest.mark.parametrize(
    ("reason", "grouped"),
    [
        ("no number: 'x17'", 'no number: "…"'),
        ("HTTP 503 from host7.example.org", "HTTP # from #"),
        ("ValueError: `abc`\n  twice", 'ValueError: "…" twice'),
        ("line 1, column 22 (char 21)", "line #, column # (char #)"),
        ("plain words", "plain words"),
        ("é" * 500, "é" * 119 + "…"),
        ('half "open', 'half "open'),
    ],
)
def test_reasons_are_grouped_without_their_values(reason: str, grouped: str) -> None:
    assert group(reason) == grouped
    assert group(group(reason)) == group(reason)
