"""Why a text did not parse: whatever it is, that is found out without failing the task it is found out in."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError
from pyspark.sql.types import IntegerType, StringType, StructType

from signoff.engine.delivery.sink_pass import described
from signoff.transforms.parsing.parse_csv import ParseCsvConfig, one_record
from signoff.transforms.parsing.parse_csv import _Describe as DescribeCsv
from signoff.transforms.parsing.parse_json import DescribeJson
from signoff.transforms.parsing.typed_texts import (
    EXACT_DATE,
    EXACT_DECIMAL,
    EXACT_FLOAT,
    EXACT_LOCAL_TIME,
    EXACT_TIME,
    Rules,
)

SCHEMA = StructType().add("n", IntegerType()).add("text", StringType())


@pytest.mark.case(46)
@given(st.text())
@example('{"n": ' + "1" * 5_000 + "}")
@example("[" * 100_000)
@example('{"n": NaN}')
@example('{"n": "\\ud800"}')
def test_any_text_that_is_not_the_json_asked_for_has_a_reason(text: str) -> None:
    assert DescribeJson(SCHEMA, None)(text)


@pytest.mark.case(46)
@given(st.text())
@example("1\r2,x")
@example("\x010\x1fv")
@example("x" * 200_000 + ",1")
@example('"')
@example("a\0b")
def test_any_text_that_is_not_the_line_asked_for_has_a_reason(text: str) -> None:
    assert DescribeCsv(Rules(SCHEMA, ("",)), ",")(text)


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ('1,"x\ny"', True),
        ('"a""\n",b', True),
        ('"\n",,"\r\n"', True),
        ("1,a\n2,b", False),
        ("\n1,a", False),
        ("1,a\r2", False),
        ('1,"x\ny"\n2,b', False),
        ('1, "x\ny"', False),
        ('1,"x\ny', False),
        ('"x,"y\nz","w', False),
        ('"x"y,"\n"', False),
    ],
)
def test_only_within_quotes_a_line_break_is_part_of_a_line(text: str, whole: bool) -> None:
    describe = DescribeCsv(Rules(SCHEMA, ("",)), ",")
    assert bool(re.search(one_record(",", '"', None), text)) is whole
    assert describe(text).startswith("several lines; ") is not whole
    escaped = text.replace('""', '\\"')
    assert bool(re.search(one_record(",", '"', "\\"), escaped)) is whole
    assert not re.search(one_record(",", None, None), text)


def test_a_line_break_behind_an_escape_that_is_escaped_is_refused_to_be_safe() -> None:
    assert not re.search(one_record(",", '"', "\\"), '"\\\\"\n"')
    assert re.search(one_record("^", "]", "-"), "][^\n-]-a]^b")


@pytest.mark.parametrize(
    ("pattern", "exact", "others"),
    [
        (EXACT_DECIMAL, ["1", " -1.50 ", "+.5", "1."], ["1.5E-3", "1e2", "", ".", "1 2", "1.2.3", "0x1"]),
        (
            EXACT_FLOAT,
            ["1", " -1.50 ", "+.5", "1.", "1e400", "1.5E-3", "NaN", "-inf", "Infinity"],
            ["12d", "1f", "0x1p3", "", ".", "1e", "1 2", "e5", "infinite", "1.2.3"],
        ),
        (
            EXACT_DATE,
            ["2026-11-18", " 2026-11-18 "],
            ["2026", "2026-11", "2026-11-18 x", "2026-1-8", "1-1-1"],
        ),
        (
            EXACT_TIME,
            [
                *("2026-11-18", "2026-11-18T12:30", "2026-11-18 12:30:01.123456", "2026-11-18T12:30:00.12Z"),
                *("2026-11-18T12:30:00+05:00", "2026-11-18T12:30:00.1234560+0530", "2026-11-18 12:30:00 UTC"),
                *("2026-11-18 12:30:00 Europe/Berlin", "2026-11-18T12:30:00-08"),
            ],
            [
                "12:30",
                "T12:30",
                "2026",
                "2026-11-18T",
                "2026-11-18T12",
                "2026-11-18T12:00:00.1234567Z",
                "1763467",
            ],
        ),
        (
            EXACT_LOCAL_TIME,
            ["2026-11-18", "2026-11-18T12:30", "2026-11-18 12:30:01.123456"],
            ["2026-11-18T12:30Z", "2026-11-18T12:00:00+05:00", "2026-11-18 12:30:00 UTC", "12:30"],
        ),
    ],
)
def test_only_texts_that_say_all_of_a_value_and_no_more_are_cast(
    pattern: str, exact: list[str], others: list[str]
) -> None:
    assert [text for text in [*exact, *others] if re.search(pattern, text)] == exact


def test_a_reason_that_cannot_be_found_is_a_reason() -> None:
    def fails(_: str) -> str:
        raise OverflowError

    assert "OverflowError" in described(fails, "x")
    assert described(None, "as it is") == "as it is"


@pytest.mark.parametrize("separator", ['"', "\\", "\n", "\r", "\0"])
def test_what_cannot_separate_fields_is_refused(separator: str) -> None:
    with pytest.raises(ValidationError, match="cannot separate fields"):
        ParseCsvConfig(type="parse_csv", input="a", schema="n INT", separator=separator)
