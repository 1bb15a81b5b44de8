"""What an intake is handed: each origin once, with the right answer, also after it was down for long."""

from __future__ import annotations

from pathlib import Path

from pyroaring import BitMap64

from signoff.ledger import Follower, Ledger, Outcome, RowOutcome, RowRef
from signoff.ledger.batch_state import Done
from tests.ledger.attempts import attempt


def test_follower_hands_out_each_origin_once(ledger: Ledger) -> None:
    follower = Follower(ledger, "incoming")
    attempt(ledger, 0, 4, delivered=[0, 3], refused=[2], owed=[1])
    settled = follower.poll()
    assert set(settled.acknowledged) == {0, 3}
    assert settled.refused == {2: "refused for a reason"}
    assert follower.poll() is None
    assert follower.upto == 1
    attempt(ledger, 0, 4, delivered=[1])
    assert set(follower.poll().acknowledged) == {1}
    assert follower.upto == 4


def test_a_refusal_is_transient_only_if_no_row_was_refused_for_good(state: Path) -> None:
    rows = [
        RowOutcome(RowRef(0), "archive", Outcome.REFUSED, "gave up", transient=True),
        RowOutcome(RowRef(1), "archive", Outcome.REFUSED, "never"),
        RowOutcome(RowRef(2, "0"), "archive", Outcome.REFUSED, "gave up", transient=True),
        RowOutcome(RowRef(2, "1"), "archive", Outcome.REFUSED, "never"),
    ]
    with Ledger(state / "ledger.db", keep_batches=2) as ledger:
        follower = Follower(ledger, "incoming")
        ledger.open_batch("incoming", 0, 4, ["archive"])
        ledger.record(
            "incoming", 0, 4, delivered=BitMap64([3]), outcomes=rows,
            sinks={"archive": Done()}, owed=BitMap64(),
        )  # fmt: skip
        settled = follower.poll()
        assert set(settled.refused) == {0, 1, 2}
        assert set(settled.transient) == {0}
        follower.confirm()
        for start in range(4, 20):
            attempt(ledger, start, start + 1, delivered=[start])
        assert ledger.folded_upto("incoming") > 4
        assert set(Follower(ledger, "incoming").poll().transient) == {0}


def test_dead_lettered_and_dropped_events_are_acknowledged(ledger: Ledger) -> None:
    follower = Follower(ledger, "incoming")
    attempt(ledger, 0, 2, dead_lettered=[0], dropped=[1])
    assert set(follower.poll().acknowledged) == {0, 1}


def test_expired_event_is_handed_out_by_expire_and_not_again(ledger: Ledger) -> None:
    follower = Follower(ledger, "incoming")
    attempt(ledger, 0, 2, delivered=[0], owed=[1])
    follower.poll()
    assert set(follower.pending(0, 8)) == {1, *range(2, 8)}
    assert set(follower.expire({0: "late", 1: "late", 7: "late"})) == {1, 7}
    assert set(follower.pending(0, 8)) == set(range(2, 7))
    assert follower.poll() is None
    attempt(ledger, 0, 2, delivered=[1])
    assert follower.poll() is None
    assert ledger.account("incoming", 8).expired == 2


def test_event_that_expired_in_the_log_is_not_owed_by_the_batch_that_takes_it(ledger: Ledger) -> None:
    ledger.expire("incoming", {1: "late"})
    assert set(ledger.open_batch("incoming", 0, 3, []).owed) == {0, 2}


def test_intake_that_starts_again_is_told_everything_with_the_same_answers(state: Path) -> None:
    with Ledger(state / "ledger.db", keep_batches=2) as ledger:
        first = Follower(ledger, "incoming")
        for start in range(0, 40, 2):
            attempt(ledger, start, start + 2, delivered=[start], refused=[start + 1])
            first.poll()
            first.confirm()
        assert ledger.folded_upto("incoming") > 0
        again = Follower(ledger, "incoming").poll()
    assert set(again.acknowledged) == set(range(0, 40, 2))
    assert set(again.refused) == set(range(1, 40, 2))


def test_refusal_is_not_folded_before_the_source_was_told(state: Path) -> None:
    with Ledger(state / "ledger.db", keep_batches=2) as ledger:
        follower = Follower(ledger, "incoming")
        attempt(ledger, 0, 2, delivered=[0], refused=[1])
        for start in range(2, 40, 2):
            attempt(ledger, start, start + 2, delivered=[start, start + 1])
        assert ledger.folded_upto("incoming") == 0
        assert follower.poll().refused == {1: "refused for a reason"}
        follower.confirm()
        attempt(ledger, 40, 42, delivered=[40, 41])
        assert ledger.folded_upto("incoming") > 2


def test_source_that_is_told_nothing_does_not_keep_its_refusals_from_folding(state: Path) -> None:
    with Ledger(state / "ledger.db", keep_batches=2) as ledger:
        Follower(ledger, "incoming")
        ledger.tells_nobody("incoming")
        for start in range(0, 40, 2):
            attempt(ledger, start, start + 2, refused=[start, start + 1])
        assert ledger.folded_upto("incoming") > 0
