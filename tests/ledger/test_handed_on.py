"""Events whose rows a sink has handed on to another log: settled when they are settled there."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pyroaring import BitMap64

from signoff.ledger import Ledger, Outcome, RowOutcome, RowRef
from signoff.ledger.batch_state import Done, HandedOn, OwesRows, SinkState
from signoff.ledger.batches import HandedOnOutcome
from tests.ledger.attempts import attempt


def handed(*origins: int) -> SinkState:
    return HandedOn(BitMap64(origins))


def release(
    ledger: Ledger,
    *,
    still: Iterable[int] = (),
    delivered: Iterable[int] = (),
    outcomes: Iterable[RowOutcome] = (),
) -> SinkState | None:
    answer = HandedOnOutcome(BitMap64(range(4)), BitMap64(still), BitMap64(delivered), list(outcomes))
    return ledger.release("incoming", 0, 4, "table", answer)


def test_what_was_handed_on_is_owed_until_it_is_settled_there(ledger: Ledger) -> None:
    known = attempt(ledger, 0, 4, owed=[0, 1, 2], sinks={"table": handed(0, 1, 2)})
    assert set(known.owed) == {0, 1, 2}
    assert not known.sinks["table"].to_ask
    assert ledger.account("incoming", 4).dropped == 1
    state = release(ledger, still=[2], delivered=[0, 1])
    assert state is not None and set(state.handed_on or ()) == {2} and not state.done
    assert ledger.account("incoming", 4).delivered == 2
    state = release(ledger, delivered=[2])
    assert state is not None and state.done
    assert ledger.settled_upto("incoming") == 4
    assert ledger.account("incoming", 4).delivered == 3


def test_the_same_answer_twice_changes_nothing(ledger: Ledger) -> None:
    attempt(ledger, 0, 4, owed=[0, 1], sinks={"table": handed(0, 1)})
    refused = [RowOutcome(RowRef(1), "table", Outcome.REFUSED, "no")]
    for _ in range(2):
        release(ledger, delivered=[0], outcomes=refused)
        account = ledger.account("incoming", 4)
        assert (account.delivered, account.refused, account.dropped, account.in_flight) == (1, 1, 2, 0)
    assert ledger.books("incoming").ignored == 0


def test_an_event_another_sink_owes_is_not_settled_by_the_answer(ledger: Ledger) -> None:
    ledger.open_batch("incoming", 0, 4, ["table", "other"])
    owing = {"table": handed(0, 1), "other": OwesRows((RowRef(1),), attempts=1)}
    attempt(ledger, 0, 4, owed=[0, 1], sinks=owing)
    release(ledger, delivered=[0, 1])
    known = ledger.batch("incoming", 0, 4)
    assert known is not None and set(known.owed) == {1}


def test_an_answer_that_comes_before_the_record_of_handing_on_waits(ledger: Ledger) -> None:
    ledger.open_batch("incoming", 0, 4, ["table"])
    assert release(ledger, delivered=[0, 1, 2, 3]) is None
    assert ledger.account("incoming", 4).in_flight == 4


def test_an_answer_for_an_expired_event_is_ignored_and_counted(ledger: Ledger) -> None:
    attempt(ledger, 0, 4, owed=[0], sinks={"table": handed(0)})
    ledger.expire("incoming", {0: "too late"})
    release(ledger, outcomes=[RowOutcome(RowRef(0), "table", Outcome.DEAD_LETTERED, "bad")])
    assert ledger.account("incoming", 4).expired == 1
    assert ledger.books("incoming").ignored == 1


def test_a_new_sink_gets_what_another_one_that_is_still_there_has_handed_on(ledger: Ledger) -> None:
    attempt(ledger, 0, 4, owed=range(4), sinks={"table": handed(0, 1, 2, 3)})
    known = ledger.open_batch("incoming", 0, 4, ["table", "other"])
    assert known.sinks["other"].wants_all, "all of it"


def test_a_new_sink_does_not_get_what_an_old_one_has_handed_on(ledger: Ledger) -> None:
    attempt(ledger, 0, 4, owed=[0, 1], sinks={"table": handed(0)})
    known = ledger.open_batch("incoming", 0, 4, ["renamed"])
    assert known.sinks["renamed"].wanted_rows == (RowRef(1),)


def test_nobody_waits_for_the_answer_to_a_batch_that_expired_while_it_was_handed_on(ledger: Ledger) -> None:
    ledger.open_batch("incoming", 0, 4, ["table"])
    ledger.expire("incoming", dict.fromkeys(range(4), "too late"))
    attempt(ledger, 0, 4, owed=[0], sinks={"table": handed(0)})
    state = release(ledger, delivered=[0])
    assert state is not None and state.done


def test_what_is_known_of_a_folded_row_is_not_called_delivered(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.db", keep_batches=1) as ledger:
        attempt(ledger, 0, 4, delivered=[0, 2, 3], refused=[1], sinks={"table": Done()})
        for start in (4, 8):
            attempt(ledger, start, start + 4, sinks={"table": Done()})
        assert ledger.folded_upto("incoming") >= 4
        assert set(ledger.delivered("incoming", 0, 4)) == {0, 2, 3}
