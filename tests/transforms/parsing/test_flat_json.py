"""Flat JSON in bulk: what is parsed, what is left to Spark, and that no text runs into another."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from signoff.transforms.parsing.flat_json import FlatJson

SCHEMA = StructType(
    [
        StructField("n", LongType()),
        StructField("small", ByteType()),
        StructField("x", DoubleType()),
        StructField("s", StringType()),
        StructField("b", BooleanType()),
        StructField("at", TimestampType()),
    ]
)
NOTHING = dict.fromkeys(SCHEMA.names)


def parse(*texts: str | None, schema: StructType = SCHEMA) -> list[dict[str, Any] | None]:
    """What became of each text; None if it is left to Spark."""
    flat = FlatJson.of(schema, None)
    assert flat is not None
    parsed, columns = flat.parse(pa.array(texts, pa.string()))
    rows = zip(*(column.to_pylist() for column in columns), strict=True)
    made = [
        dict(zip(schema.names, row, strict=True)) if done else None
        for done, row in zip(parsed.to_pylist(), rows, strict=True)
    ]
    assert len(made) == len(texts)
    return made


def test_a_flat_object_becomes_typed_columns() -> None:
    (row,) = parse('{"n": 7, "x": 1.5, "s": "a\\u00e9\\"", "b": true, "at": "2024-05-01T12:30:00.25Z"}')
    assert row is not None
    assert (row["n"], row["x"], row["s"], row["b"], row["small"]) == (7, 1.5, 'aé"', True, None)
    assert row["at"].isoformat() == "2024-05-01T12:30:00.250000+00:00"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "{",
        None,
        "null",
        '{"n": 1',
        '{"n": 1}}',
        '{"n": 1} ',
        ' {"n": 1}',
        '{"n": 1}{"n": 2}',
        '{"n": 1.5}',
        '{"n": 1e2}',
        '{"n": "1"}',
        '{"n": [1]}',
        '{"n": 99999999999999999999}',
        '{"n": 01}',
        "{'n': 1}",
        '{"n": 1, "n": 2}',
        '{"n": 1, }',
        '{"s": 5}',
        '{"s": "a\tb"}',
        '{"s": "\\ud83d"}',
        '{"s": {"n": 1}}',
        '{"s": "}"}',
        '{"b": 1}',
        '{"x": NaN}',
        '{"other": NaN}',
        '{"other": Inf}',
        '{"other": -Infinity}',
        '{"x": 1e999}',
        '{"other": ' + "7" * 1500 + "}",
        '{"other": ' + "[" * 1500 + "]" * 1500 + "}",
        '{"s": "' + "y" * 60_000 + '"}',
        '{"at": 5}',
        '{"at": "2024-05-01"}',
        '{"at": "2024-02-30T00:00:00Z"}',
        '{"at": "soon"}',
        '{"n": 1\0}',
    ],
)
def test_what_is_doubtful_is_left_to_spark_and_harms_no_other(text: str | None) -> None:
    assert parse('{"n": 1}', text, '{"n": 2}') == [{**NOTHING, "n": 1}, None, {**NOTHING, "n": 2}]


@pytest.mark.parametrize(
    "texts",
    [
        ('{"n": 1', ', "s": "x"}{"n": 2}'),
        ('{"s": "a}', '{"s": "b"}'),
        ('{"s": {"n": 1}', '{"n": 2}'),
        ('{"o": [{"n": 1}', '{"n": 2}'),
        ('{"n": 1}', '{"s": "x}', '{", "n": 2}'),
        ("{}", '{"n":', "{}"),
    ],
)
def test_no_text_runs_into_another(texts: tuple[str, ...]) -> None:
    for text, row in zip(texts, parse(*texts), strict=True):
        if row is not None:
            assert row == {**NOTHING, **json.loads(text)}


def test_texts_with_words_that_begin_like_no_number_are_parsed() -> None:
    row = parse('{"s": "Information, Inc. on NaN-tucket"}', '{"s": "Infrastructure"}')[1]
    assert row == {**NOTHING, "s": "Infrastructure"}


def test_line_ends_between_values_are_allowed() -> None:
    assert parse('{"n":\n1,\r\n"s": "x"}', "{\n}") == [{**NOTHING, "n": 1, "s": "x"}, NOTHING]


@pytest.mark.parametrize("every", [3, 40, 997, 5000])
@pytest.mark.parametrize("bad", ['{"n": 1.5}', '{"n": "1"}', '{"n": 1', '{"small": 1000}', '{"at": "x"}'])
def test_bad_texts_among_many_leave_each_row_in_its_place(every: int, bad: str) -> None:
    texts = [bad if n % every == every - 1 else f'{{"n": {n}}}' for n in range(9000)]
    rows = parse(*texts)
    assert all(row is None or row == {**NOTHING, "n": n} for n, row in enumerate(rows))
    assert not any(rows[every - 1 :: every])
    if every > 100:  # with fewer between them, it is not worth it
        assert sum(row is not None for row in rows) > 8000


def test_a_part_of_an_array_is_parsed_like_a_whole_one() -> None:
    flat = FlatJson.of(SCHEMA, None)
    assert flat is not None
    texts = pa.array([f'{{"n": {n}}}' for n in range(10)])
    parsed, columns = pickle.loads(pickle.dumps(flat)).parse(texts.slice(3, 4))
    assert parsed.to_pylist() == [True] * 4 and columns[0].to_pylist() == [3, 4, 5, 6]


def test_no_texts_at_all() -> None:
    assert parse() == []
    assert parse(None, None) == [None, None]


def test_a_value_that_only_its_type_shows_to_be_wrong_is_left_to_spark_with_its_neighbours() -> None:
    assert parse('{"n": 1}', '{"small": 128}', '{"n": 2}') == [None, None, None]


@pytest.mark.parametrize("kind", [ArrayType(LongType()), StructType([StructField("n", LongType())])])
def test_nested_columns_are_left_to_spark(kind: Any) -> None:
    assert FlatJson.of(StructType([StructField("c", kind)]), None) is None


def test_times_in_a_form_only_spark_knows_are_left_to_it() -> None:
    assert FlatJson.of(SCHEMA, "EEE, d MMM yyyy") is None
    assert FlatJson.of(StructType([StructField("n", LongType())]), "EEE, d MMM yyyy") is not None


VALUES = st.none() | st.booleans() | st.integers(-300, 300) | st.floats(width=32) | st.text(max_size=4)


@given(
    st.lists(
        st.dictionaries(st.sampled_from([*SCHEMA.names, "other"]), VALUES).map(json.dumps)
        | st.text(alphabet='{}[]":,n1 \n', max_size=12),
        max_size=12,
    )
)
def test_whatever_is_parsed_is_what_json_says(texts: list[str]) -> None:
    for text, row in zip(texts, parse(*texts), strict=True):
        if row is None:
            continue
        value = json.loads(text)
        assert {name: value.get(name) for name in SCHEMA.names if name != "at"} == {
            name: found for name, found in row.items() if name != "at"
        }
