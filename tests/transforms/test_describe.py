"""Why a text did not parse: whatever it is, that is found out without failing the task it is found out in."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError
from pyspark.sql.types import IntegerType, StringType, StructType

from signoff.engine.delivery import described
from signoff.transforms.parse_csv import ParseCsvConfig
from signoff.transforms.parse_csv import _Describe as DescribeCsv
from signoff.transforms.parse_json import DescribeJson
from signoff.transforms.typed_texts import Rules

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


def test_a_reason_that_cannot_be_found_is_a_reason() -> None:
    def fails(_: str) -> str:
        raise OverflowError

    assert "OverflowError" in described(fails, "x")
    assert described(None, "as it is") == "as it is"


@pytest.mark.parametrize("separator", ['"', "\\", "\n", "\r", "\0"])
def test_what_cannot_separate_fields_is_refused(separator: str) -> None:
    with pytest.raises(ValidationError, match="cannot separate fields"):
        ParseCsvConfig(type="parse_csv", input="a", schema="n INT", separator=separator)
