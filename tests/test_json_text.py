"""JSON made by kernels against Python's own reader: any types, any values, any slice."""

from __future__ import annotations

import datetime as dt
import json
import math
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings

from signoff.errors import PermanentError
from signoff.json_text import buffer_of, json_lines, json_values
from signoff.testing.conformance.rows import comparable, every_type, from_json, parse

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_TIMES = st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30))
_LEAVES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-(2**7), 2**7 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats() | st.integers(-(10**18), 10**18).map(float)),
    (pa.decimal128(38, 10), st.decimals(-(10**20), 10**20, places=10)),
    (pa.string(), _TEXT | st.sampled_from(['"', "\\", "\n", "\x00", "\x1f\x7f", "\u2028", "null"])),
    (pa.large_string(), _TEXT),
    (pa.binary(), st.binary(max_size=9)),
    (pa.date32(), st.dates()),
    (pa.timestamp("us", "UTC"), _TIMES.map(lambda at: at.replace(tzinfo=dt.UTC))),
    (pa.timestamp("us"), _TIMES | _TIMES.map(lambda at: at.replace(microsecond=0))),
    (pa.time64("us"), st.times()),
    (pa.duration("us"), st.timedeltas(dt.timedelta(days=-99_999), dt.timedelta(days=99_999))),
    (pa.null(), st.none()),
]
_KEYS = [
    (kind, values) for kind, values in _LEAVES if kind in (pa.string(), pa.int64(), pa.bool_(), pa.date32())
]

Typed = tuple[pa.DataType, st.SearchStrategy[Any]]


def _nested(inner: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    lists = inner.map(lambda one: (pa.list_(one[0]), st.lists(one[1] | st.none(), max_size=4)))
    structs = st.lists(inner, max_size=3).map(_struct)
    maps = st.tuples(st.sampled_from(_KEYS), inner).map(_map)
    return lists | structs | maps


def _struct(parts: list[Typed]) -> Typed:
    names = [f'field "{place}"' for place in range(len(parts))]
    kind = pa.struct([pa.field(name, part[0]) for name, part in zip(names, parts, strict=True)])
    values = {name: part[1] | st.none() for name, part in zip(names, parts, strict=True)}
    return kind, st.fixed_dictionaries(values)


def _map(parts: tuple[Typed, Typed]) -> Typed:
    (key, keys), (item, items) = parts
    pairs = st.lists(st.tuples(keys, items | st.none()), max_size=3, unique_by=lambda pair: pair[0])
    return pa.map_(key, item), pairs


_TYPES = st.recursive(st.sampled_from(_LEAVES), _nested, max_leaves=4)


@st.composite
def _batches(draw: st.DrawFn) -> pa.RecordBatch:
    columns = draw(st.lists(_TYPES, min_size=1, max_size=4))
    count = draw(st.integers(0, 6))
    arrays = [
        pa.array(draw(st.lists(values | st.none(), min_size=count, max_size=count)), kind)
        for kind, values in columns
    ]
    names = [f"column {place} ä\t" for place in range(len(arrays))]
    batch = pa.RecordBatch.from_arrays(arrays, names)
    start = draw(st.integers(0, count))
    return batch.slice(start, draw(st.integers(0, count - start)))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(_batches())
def test_lines_read_back_as_the_rows_they_came_from(rows: pa.RecordBatch) -> None:
    text = buffer_of(json_lines(rows)).to_pybytes().decode()
    values = [parse(line) for line in text.split("\n")[:-1]]
    back = [{one.name: from_json(value[one.name], one.type) for one in rows.schema} for value in values]
    assert comparable(back) == comparable(rows.to_pylist())


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(_batches())
def test_values_are_null_only_where_the_column_is(rows: pa.RecordBatch) -> None:
    for column in rows.columns:
        texts = json_values(column).to_pylist()
        assert [text is None for text in texts] == [value is None for value in column.to_pylist()]


def test_numbers_that_json_does_not_have_are_strings() -> None:
    rows = pa.record_batch({"x": pa.array([math.nan, math.inf, -math.inf, 1.0, -0.0, None])})
    assert buffer_of(json_lines(rows)).to_pybytes() == (
        b'{"x":"NaN"}\n{"x":"Infinity"}\n{"x":"-Infinity"}\n{"x":1.0}\n{"x":-0.0}\n{"x":null}\n'
    )


def test_floats_stay_floats_for_a_reader_that_tells_them_from_integers() -> None:
    numbers = [6.0, 1e14, 999_999_999_999_999.0, 1e15, 1e16, 1e22, 5e-324, 1.7e308, 0.1]
    rows = pa.record_batch({"x": pa.array(numbers)})
    back = [json.loads(line)["x"] for line in buffer_of(json_lines(rows)).to_pybytes().splitlines()]
    assert [(type(value), value) for value in back] == [(float, number) for number in numbers]


def test_times_show_a_fraction_only_where_there_is_one() -> None:
    micros = pa.array([0, 1, -1, None, -1_000_000], pa.int64()).cast(pa.timestamp("us", "America/New_York"))
    assert json_values(micros).to_pylist() == [
        '"1970-01-01T00:00:00Z"',
        '"1970-01-01T00:00:00.000001Z"',
        '"1969-12-31T23:59:59.999999Z"',
        None,
        '"1969-12-31T23:59:59Z"',
    ]


def test_unknown_type_is_a_permanent_error_that_names_the_column() -> None:
    rows = pa.record_batch({"odd": pa.array([(1, 2, 3)], pa.month_day_nano_interval())})
    with pytest.raises(PermanentError, match='column "odd" has type month_day_nano_interval'):
        json_lines(rows)


def test_rows_without_columns_and_columns_without_rows_are_fine() -> None:
    assert buffer_of(json_lines(every_type().slice(0, 0))).to_pybytes() == b""
    empty = pa.array([{}, {}], pa.struct([]))
    assert json_values(empty).to_pylist() == ["{}", "{}"]
