"""Conditions in Spark SQL over dead letters."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from signoff.engine.replay.letter_sql import selected
from signoff.errors import StateError
from signoff.ledger import DeadLetter

pytestmark = pytest.mark.spark

LETTERS = [
    DeadLetter(
        "incoming/0", "table", "too long", b'{"n": 7, "at": {"x": "a"}}', {"file": "a"}, attempts=3, at=1e9
    ),
    DeadLetter("incoming/1", "rows", "not valid JSON", b'{"n": ', at=2e9),
    DeadLetter("incoming/2", "table", "no", b"\xff", {"file": "b"}, received_at=5.0, at=1e9),
]


@pytest.mark.parametrize(
    ("where", "numbers"),
    [
        ("event:n::bigint = 7", [0]),
        ("event:at.x::string = 'a' AND attempts > 1", [0]),
        ("event IS NULL", [1, 2]),
        ("payload LIKE '{%'", [0, 1]),
        ("headers['file'] = 'b' OR stage = 'rows'", [1, 2]),
        ("at < timestamp'2010-01-01' AND received_at IS NULL", [0]),
        ("sequence_of > 3", None),
        ("this is no SQL", None),
    ],
)
def test_letters_are_chosen_by_what_is_in_them(
    spark: SparkSession, where: str, numbers: list[int] | None
) -> None:
    if numbers is None:
        with pytest.raises(StateError, match="--where cannot be computed"):
            selected(spark, LETTERS, where)
    else:
        assert selected(spark, LETTERS, where) == [LETTERS[number] for number in numbers]


def test_an_expression_that_fails_for_a_letter_is_said(spark: SparkSession) -> None:
    with pytest.raises(StateError, match="--where cannot be computed"):
        selected(spark, LETTERS, "CAST(reason AS INT) = 1")
