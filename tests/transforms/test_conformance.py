"""What every stateless transform must do, asked of ours (see `signoff.testing`), and of the bases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import pytest
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import DataType

from signoff.plugin import ColumnTransform, FieldError, RowTransform, drop
from signoff.testing import TransformConformance, TransformExample
from signoff.testing.conformance.described import describes_itself
from signoff.transforms import TYPES
from signoff.transforms.filter import FilterConfig
from signoff.transforms.flatten import FlattenConfig
from signoff.transforms.functions.python import PythonConfig
from signoff.transforms.mask import MaskConfig
from signoff.transforms.parsing.parse_csv import ParseCsvConfig
from signoff.transforms.parsing.parse_json import ParseJsonConfig
from signoff.transforms.parsing.parse_key_value import ParseKeyValueConfig
from signoff.transforms.parsing.parse_regex import ParseRegexConfig
from signoff.transforms.sample import SampleConfig
from signoff.transforms.select import SelectConfig
from signoff.transforms.unfold import UnfoldConfig
from signoff.transforms.validate import ValidateConfig

pytestmark = pytest.mark.spark


class Celsius(ColumnTransform):
    """Degrees Fahrenheit as Celsius."""

    summary: ClassVar[str] = "Adds degrees Celsius, and leaves out what is colder than `above`."
    drops: ClassVar[str] = "too cold"
    type: Literal["celsius"] = "celsius"
    column: str
    """The column with degrees Fahrenheit, as text."""
    above: float = -273.15
    """Rows that are not warmer are dropped."""

    def columns(self, given: Mapping[str, DataType]) -> Mapping[str, Column | None]:
        if self.column not in given:
            raise FieldError("column", "unresolved-column", f'there is no column "{self.column}"')
        return {"celsius": self._celsius(), self.column: None}

    def keep(self, given: Mapping[str, DataType]) -> Column | None:
        return self._celsius() > F.lit(self.above) if self.column in given else None

    def _celsius(self) -> Column:
        return (F.col(self.column).cast("double") - F.lit(32)) / F.lit(1.8)


class Words(RowTransform):
    """A text word by word."""

    summary: ClassVar[str] = "One row for each word of a text."
    type: Literal["words"] = "words"

    def columns(self, given: Mapping[str, DataType]) -> str:
        return "word STRING, length INT"

    def row(self, row: dict[str, Any]) -> list[Any]:
        if row["text"] == "secret":
            return [drop("nobody's business")]
        return [{"word": word, "length": len(word)} for word in row["text"].split()]


def half(row: dict[str, Any]) -> dict[str, Any] | None:
    return {"n": row["n"] // 2} if row["n"] % 2 == 0 else None


def doubled(rows: DataFrame) -> DataFrame:
    return rows.where("cast(n AS INT) > 3").selectExpr("cast(n AS INT) * 2 AS twice", "_origin")


SAMPLED = "abgh"
"""The half that the key decides on, the same on every machine."""

EXAMPLES = {
    "columns": TransformExample(
        Celsius(column="f", above=0),
        "id INT, f STRING",
        [{"id": 1, "f": "212"}, {"id": 2, "f": "32"}, {"id": 3, "f": "50"}],
        [{"id": 1, "celsius": 100.0}, {"id": 3, "celsius": 10.0}],
        [{"id": 4, "f": "warm"}],
    ),
    "rows": TransformExample(
        Words(),
        "text STRING",
        [{"text": "on and on"}, {"text": ""}, {"text": "secret"}],
        [{"word": "on", "length": 2}, {"word": "and", "length": 3}, {"word": "on", "length": 2}],
        [{"text": None}],
    ),
    "filter": TransformExample(
        FilterConfig(where="cast(n AS INT) > 1"),
        "n STRING",
        [{"n": "1"}, {"n": "2"}],
        [{"n": "2"}],
        [{"n": "two"}],
    ),
    "select": TransformExample(
        SelectConfig(columns=("n", "10 / n AS tenth")),
        "n INT, m INT",
        [{"n": 5}, {"n": 2, "m": 1}],
        [{"n": 5, "tenth": 2.0}, {"n": 2, "tenth": 5.0}],
        [{"n": 0}],
    ),
    "validate": TransformExample(
        ValidateConfig(rules={"positive": "n > 0"}),
        "n INT",
        [{"n": 5}],
        [{"n": 5}],
        [{"n": -1}, {"n": 0}],
    ),
    "flatten": TransformExample(
        FlattenConfig(columns=("a",)),
        "a STRUCT<b: INT, c: STRING>, n INT",
        [{"a": {"b": 1, "c": "x"}, "n": 2}],
        [{"a_b": 1, "a_c": "x", "n": 2}],
    ),
    "mask": TransformExample(
        MaskConfig(columns={"card": {"last": 2}, "name": "redact"}),  # type: ignore[dict-item]
        "card STRING, name STRING",
        [{"card": "12345", "name": "Ann"}, {"card": "1"}],
        [{"card": "***45", "name": "***"}, {"card": "*", "name": None}],
    ),
    "unfold": TransformExample(
        UnfoldConfig.model_validate({"column": "parts", "as": "part"}),
        "id INT, parts ARRAY<INT>",
        [{"id": 1, "parts": [7, 8]}, {"id": 2, "parts": []}],
        [{"id": 1, "part": 7}, {"id": 1, "part": 8}],
    ),
    "parse_regex": TransformExample(
        ParseRegexConfig.model_validate({"patterns": [r"(?<key>\w+)=(?<value>\d+)"], "column": "line"}),
        "line STRING",
        [{"line": "a=1"}],
        [{"key": "a", "value": "1"}],
        [{"line": "nothing"}],
    ),
    "parse_json": TransformExample(
        ParseJsonConfig.model_validate({"schema": "a INT, b ARRAY<STRING>", "column": "text"}),
        "text STRING",
        [{"text": '{"a": 1, "b": ["x"]}'}, {"text": '{"b": []}'}],
        [{"a": 1, "b": ["x"]}, {"a": None, "b": []}],
        [{"text": '{"a": 1'}, {"text": '{"a": "one"}'}],
    ),
    "parse_csv": TransformExample(
        ParseCsvConfig.model_validate({"schema": "a INT, b STRING", "column": "line"}),
        "line STRING",
        [{"line": '1,"x, y"'}, {"line": ","}],
        [{"a": 1, "b": "x, y"}, {"a": None, "b": None}],
        [{"line": "one,x"}, {"line": "1"}],
    ),
    "sample": TransformExample(
        SampleConfig(fraction=0.5, key="id"),
        "id STRING",
        [{"id": name} for name in "abcdefgh"],
        [{"id": name} for name in SAMPLED],
    ),
    "parse_key_value": TransformExample(
        ParseKeyValueConfig.model_validate({"schema": "a INT, b STRING", "column": "line"}),
        "line STRING",
        [{"line": "a=1 b=x"}],
        [{"a": 1, "b": "x"}],
        [{"line": "a=one"}],
    ),
    "frame": TransformExample(
        PythonConfig.model_validate({"function": doubled}),
        "n STRING",
        [{"n": "4"}, {"n": "3"}],
        [{"twice": 8}],
    ),
    "python": TransformExample(
        PythonConfig.model_validate({"function": half, "mode": "rows", "schema": "n INT"}),
        "n INT",
        [{"n": 4}, {"n": 3}],
        [{"n": 2}],
        [{"n": None}],
    ),
}


@pytest.fixture(scope="module", params=EXAMPLES)
def example(request: pytest.FixtureRequest, spark: Any) -> TransformExample:
    return EXAMPLES[request.param]


class TestTransforms(TransformConformance):
    """Those without state."""


@pytest.mark.parametrize("name", TYPES)
def test_every_type_describes_itself(name: str) -> None:
    assert TYPES[name].model_fields["type"].default == name
    describes_itself(TYPES[name], "transform")
