"""What a test says of rows, letters and counts that are not as expected: a diff that people can read."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from xml.etree import ElementTree

import pytest

from signoff.cli.junit import junit
from signoff.cli.test import Verdict
from signoff.pipeline.tests_block import Case
from signoff.testing.compare import differences, same
from signoff.testing.fixed_now import at
from signoff.testing.running import Letter, Result

NOW = datetime(2026, 5, 1, 10, 30, tzinfo=UTC)


def compared(rows: list[dict[str, Any]], *letters: Letter, drops: Any = None, **fields: Any) -> list[str]:
    case = Case.model_validate({"name": "one", "given": {"incoming": [1]}, **fields})
    ids = {"table": [f"incoming/{number}" for number in range(len(rows))]}
    result = Result({"table": rows}, list(letters), drops or {}, {"received": 3, "delivered": 2}, ids)
    return [str(difference) for difference in differences(case, result)]


ROWS = [{"id": 5, "name": "North", "value": 1.5}, {"id": 6, "name": "South", "value": 2.5}]


def test_rows_are_compared_without_order_and_only_in_the_columns_that_are_named() -> None:
    assert compared(ROWS, expect={"table": [{"id": 6}, {"name": "North", "id": 5}]}) == []
    assert compared(ROWS, expect={"table": 2}) == []
    assert compared(ROWS, expect={"table": [{"event_id": "incoming/1"}, {"event_id": "incoming/0"}]}) == []


def test_a_row_that_differs_is_shown_side_by_side_with_the_nearest() -> None:
    (text,) = compared(
        ROWS, expect={"table": [{"id": 5, "name": "Nort", "value": 1.5}, {"id": 6, "name": "South"}]}
    )
    assert text.splitlines() == [
        "table:",
        '  ~ differs:    {"id": 5, "value": 1.5}',
        '      name  expected "Nort"  got "North"',
    ]


def test_missing_and_unexpected_rows_are_told_apart() -> None:
    (text,) = compared(ROWS[:1], expect={"table": [{"id": 5}, {"id": 7, "name": "West"}]})
    assert text.splitlines() == ["table:", '  - missing:    {"id": 7, "name": "West"}']
    (text,) = compared(ROWS, expect={"table": [{"id": 5, "name": "North"}]})
    assert text.splitlines() == ["table:", '  + unexpected: {"id": 6, "name": "South"}']
    (text,) = compared(ROWS, expect={"table": 3})
    assert text.splitlines()[1] == "  expected 3 rows, got 2"


def test_a_column_that_is_not_there_is_said_to_be_so() -> None:
    (text,) = compared(ROWS[:1], expect={"table": [{"id": 5, "nmae": "North"}]})
    assert 'nmae  expected "North"  got (no such column)' in text


def test_a_dead_letter_that_nobody_expects_fails_the_test() -> None:
    letter = Letter("parsed", "not valid JSON: line 1", b"{broken", "incoming/2")
    assert (
        compared([], letter, letters=[{"stage": "parsed", "reason": "Not Valid", "payload": "{broken"}]) == []
    )
    (text,) = compared([], letter)
    assert "  + unexpected: at parsed: not valid JSON: line 1  {broken" in text
    (text,) = compared([], letters=[{"stage": "parsed", "reason": "too large"}])
    assert "  - missing:    at parsed: too large" in text


def test_counts_are_compared_where_they_are_named() -> None:
    assert compared([], drops={"filtered": 2}, account={"received": 3}) == []
    case: dict[str, Any] = {"drops": {"filtered": 1}, "account": {"delivered": 3}}
    ids: dict[str, list[str]] = {"table": []}
    result = Result({"table": []}, [], {"filtered": 2}, {"delivered": 2}, ids)
    made = Case.model_validate({"name": "one", "given": {"incoming": [1]}, **case})
    assert [str(each) for each in differences(made, result)] == [
        "drops at filtered: expected 1, got 2",
        "delivered: expected 3, got 2",
    ]


@pytest.mark.parametrize(
    ("expected", "got"),
    [
        ("2026-05-01T10:30:00Z", NOW),
        ("2026-05-01 12:30:00+02:00", NOW),
        ("2026-05-01T10:30:00", datetime(2026, 5, 1, 10, 30)),
        ("2026-05-01", date(2026, 5, 1)),
        (1.5, Decimal("1.50")),
        ("1.50", Decimal("1.5")),
        (0.1, 0.1 + 1e-12),
        (3, 3.0),
        ("nan", float("nan")),
        ({"a": 1}, [("a", 1), ("b", 2)]),
        ([1, None], [1, None]),
        ("aGk=", b"hi"),
        (None, None),
    ],
)
def test_values_of_rows_are_what_yaml_can_write(expected: Any, got: Any) -> None:
    assert same(expected, got)


@pytest.mark.parametrize(
    ("expected", "got"), [(1, True), (None, 0), ("", None), ("1", 1), (1, "1"), ([1], [1, 2])]
)
def test_values_of_other_kinds_are_not_the_same(expected: Any, got: Any) -> None:
    assert not same(expected, got)


def test_now_in_sql_is_the_time_of_the_test() -> None:
    moment = "TIMESTAMP'2026-05-01T10:30:00.000000Z'"
    assert at(NOW, "t > now() - INTERVAL 1 DAY") == f"t > {moment} - INTERVAL 1 DAY"
    assert at(NOW, "CURRENT_TIMESTAMP > t AND current_date = d") == f"{moment} > t AND DATE'2026-05-01' = d"
    for text in (
        "'now()'",
        '"current_date"',
        "`current_date`",
        "x.now()",
        "know()",
        "a -- now()",
        "/* now() */ 1",
    ):
        assert at(NOW, text) == text


def test_junit_names_what_failed_and_where() -> None:
    verdicts = [
        Verdict("fine", "p.yaml:3", 0.5),
        Verdict("wrong \x00 <row>", "p.yaml:9", 1.0, (("expect.table", "table:\n  - missing: 1"),)),
        Verdict("broken", "p.yaml:12", 0.1, error="p.yaml:4 [syntax-error] no"),
    ]
    suite = ElementTree.fromstring(junit("alarms", verdicts).encode())[0]
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("3", "1", "1")
    assert [case.get("line") for case in suite] == ["3", "9", "12"]
    assert suite[1][0].text == "table:\n  - missing: 1"


def test_why_a_test_did_not_end_is_said_before_what_is_missing_because_of_it() -> None:
    made = Case.model_validate({"name": "one", "given": {"incoming": [1]}, "expect": {"table": 1}})
    result = Result({"table": []}, [], {}, {}, {"table": []}, "the query fails: no worker")
    first, second = map(str, differences(made, result))
    assert first == "it did not come to an end: the query fails: no worker"
    assert "expected 1 rows, got 0" in second
