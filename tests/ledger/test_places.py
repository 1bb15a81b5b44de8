"""Sinks whose batches replace what has their names: the ledger follows the place, and gives numbers."""

from __future__ import annotations

from collections.abc import Mapping

from pyroaring import BitMap64

from signoff.ledger import Ledger, RowRef
from signoff.ledger.batch_state import Debtor, Done, OwesAll, OwesRows, SinkState, Untried, Wait

BATCH = ("incoming", 0, 10)
ALL = BitMap64(range(10))
HOOK = OwesRows((RowRef(2),), attempts=1, error="down", since=1.0)
WAITS = OwesRows((RowRef(4), RowRef(5)), attempts=1, error="503", since=1.0)


def record(
    ledger: Ledger,
    sinks: Mapping[str, SinkState],
    waits: Mapping[Wait, SinkState] | None = None,
    published: tuple[Debtor, ...] = (),
) -> None:
    owed = BitMap64.union(
        BitMap64(), *(each.owes(ALL) for each in (*sinks.values(), *(waits or {}).values()))
    )
    ledger.record(
        *BATCH, delivered=ALL, outcomes=[], sinks=sinks, waits=waits, owed=owed, published=published
    )


def begin(ledger: Ledger, **places: str) -> None:
    ledger.settle_places("incoming", places)
    ledger.open_batch(*BATCH, [*places, "hook"])


def test_a_sink_that_is_renamed_at_its_place_has_done_and_owes_what_it_had_before(ledger: Ledger) -> None:
    begin(ledger, archive="/out")
    record(ledger, {"archive": Done(), "hook": HOOK}, {Wait("archive", "ask"): WAITS})
    number = ledger.batch(*BATCH).published_as[Wait("archive", "ask")]
    assert ledger.settle_places("incoming", {"kept": "/out"}) == {"archive": "kept"}
    known = ledger.open_batch(*BATCH, ["kept", "hook"])
    assert known.sinks == {"kept": Done(), "hook": HOOK} and known.waits == {Wait("kept", "ask"): WAITS}
    assert known.published_as[Wait("kept", "ask")] == number, "what a kill has left is found again"
    assert ledger.settle_places("incoming", {"kept": "/out"}) == {}
    assert ledger.settle_places("incoming", {"archive": "/out"}) == {"kept": "archive"}
    assert ledger.open_batch(*BATCH, ["archive", "hook"]).sinks["archive"] == Done()


def test_only_the_sinks_of_the_last_run_are_known_by_their_places(ledger: Ledger) -> None:
    begin(ledger, archive="/out")
    record(ledger, {"archive": Done(), "hook": HOOK})
    begin(ledger, other="/elsewhere")
    assert ledger.settle_places("incoming", {"other": "/elsewhere", "kept": "/out"}) == {}
    known = ledger.open_batch(*BATCH, ["other", "kept", "hook"])
    assert known.sinks["kept"] == Untried((RowRef(2),)) and known.published_as["kept"]


def test_a_sink_at_the_place_of_another_that_is_there_gets_what_it_is_owed_by_name(
    ledger: Ledger,
) -> None:
    begin(ledger, first="/1", second="/2")
    down = OwesAll(ALL, attempts=3, error="down", since=1.0)
    record(ledger, {"first": down, "second": Done(), "hook": HOOK})
    assert ledger.settle_places("incoming", {"first": "/2", "second": "/1", "third": "/1"}) == {}
    known = ledger.open_batch(*BATCH, ["first", "second", "third", "hook"])
    by_name = Untried(tuple(map(RowRef, range(10))))
    assert known.sinks == {"first": by_name, "second": Done(), "third": by_name, "hook": HOOK}
    assert len({known.published_as["first"], known.published_as["third"]}) == 2


def test_a_sink_that_is_new_in_a_batch_has_a_number_also_if_it_is_to_get_all_of_it(ledger: Ledger) -> None:
    ledger.open_batch(*BATCH, ["archive"])
    assert not ledger.batch(*BATCH).published_as
    known = ledger.open_batch(*BATCH, ["archive", "kept"])
    assert known.sinks["kept"] == Untried() and list(known.published_as) == ["kept"]


def test_a_number_stays_until_rows_are_published_under_it_and_is_never_given_again(ledger: Ledger) -> None:
    step, other = Wait("archive", "ask"), Wait("archive", "look")
    ledger.open_batch(*BATCH, ["archive"])
    record(ledger, {"archive": Done()}, {step: WAITS, other: HOOK})
    first = ledger.batch(*BATCH).published_as
    assert len({*first.values()}) == 2
    ledger.expire("incoming", {4: "too late"})
    more = OwesRows((RowRef(5), RowRef(6)), attempts=2, error="503", since=1.0)
    record(ledger, {}, {step: more})
    assert ledger.batch(*BATCH).published_as == first, "whatever is asked for"
    record(ledger, {}, {step: WAITS}, published=(step,))
    second = ledger.batch(*BATCH).published_as
    assert second[other] == first[other] and second[step] not in first.values()
    record(ledger, {}, {step: Done()}, published=(step,))
    record(ledger, {}, {step: WAITS})
    third = ledger.batch(*BATCH).published_as
    assert third[step] not in {*first.values(), *second.values()}, "also if rows wait for the step again"
