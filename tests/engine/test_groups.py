"""A function on groups of events, called as an executor calls it."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import Row

import signoff
from signoff.transforms.functions.groups import GroupCall
from signoff.transforms.row_results import RowResult, parse_result
from signoff.transforms.united_rows import united_child


def member(sequence: int, n: int, child: str = "", others: list[int] | None = None) -> Row:
    return Row(sequence=sequence, child=child, others=others, event=Row(n=n))


def called(function: Any, *members: Row) -> list[Any]:
    made = GroupCall(function, lambda item: (item["n"],))(members)
    return [tuple(row[name] for name in ("sequence", "child", "others", "value", "error")) for row in made]


GROUP = (member(7, 3), member(2, 1), member(4, 2, "0", [9]))


def test_the_function_sees_the_events_in_order_and_its_result_has_all_their_origins() -> None:
    (made,) = called(lambda events: {"n": [event["n"] for event in events]}, *GROUP)
    assert made == (2, united_child([(2, ""), (4, "0"), (7, "")]), [4, 7, 9], ([1, 2, 3],), None)


def test_each_event_of_a_list_has_an_id_of_its_own() -> None:
    made = called(lambda events: [{"n": 1}, {"n": 2}], *GROUP)
    assert [row[1].partition("/")[2] for row in made] == ["0", "1"]


def test_unite_names_the_events_a_result_is_made_of() -> None:
    def halves(events: list[Any]) -> list[Any]:
        return [signoff.unite(events[:1], {"n": 0}), signoff.unite(events[1:], signoff.drop("no"))]

    first, *rest = called(halves, *GROUP)
    assert first == (2, united_child([(2, "")]) + "/0", None, (0,), None)
    assert [(row[0], row[1], row[2], parse_result(row[4] or "")) for row in rest] == [
        (4, "0", [9], (RowResult.DROPPED, "no")),
        (7, "", None, (RowResult.DROPPED, "no")),
    ]


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda events: 1 // 0, "ZeroDivisionError: integer division or modulo by zero"),
        (lambda events: signoff.unite([dict(events[0])], {"n": 1}), "TypeError: unite takes the events"),
        (lambda events: signoff.unite([], {"n": 1}), "ValueError: unite needs at least one event"),
        (lambda events: signoff.fail("no"), "no"),
    ],
)
def test_what_goes_wrong_is_the_error_of_every_event_of_the_group(function: Any, reason: str) -> None:
    made = called(function, *GROUP)
    assert [(row[0], row[1], row[2], row[3]) for row in made] == [
        (2, "", None, None), (4, "0", [9], None), (7, "", None, None)
    ]  # fmt: skip
    assert all(parse_result(row[4] or "")[1].startswith(reason) for row in made)


def test_nothing_is_made_of_a_group_for_which_the_function_returns_none() -> None:
    assert called(lambda events: None, *GROUP) == []
