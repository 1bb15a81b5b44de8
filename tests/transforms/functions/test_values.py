"""What a user's function returns, by type: taken as it is, or the error of its own event."""

# ruff: noqa: E501 - a table reads better with one case a line
from __future__ import annotations

import datetime as dt
import itertools
import pickle
import sys
import uuid
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import types as t
from pyspark.sql.types import ArrayType, LongType, Row, StringType, StructField, StructType

import signoff
from signoff.pipeline.secrets import register_secret
from signoff.transforms.functions.arrow_calls import _Batches
from signoff.transforms.functions.groups import GroupCall
from signoff.transforms.functions.row_calls import RowCall
from signoff.transforms.functions.values import Fields
from signoff.transforms.row_results import RowResult, parse_result

UTC = dt.UTC
GIVEN = StructType().add("n", LongType()).add("at", t.TimestampType())
FROM_SPARK = pa.struct({"n": pa.int64(), "at": pa.timestamp("us", "UTC")})
KINDS = {
    "STRING": t.StringType(),
    "BIGINT": t.LongType(),
    "INT": t.IntegerType(),
    "TINYINT": t.ByteType(),
    "DOUBLE": t.DoubleType(),
    "FLOAT": t.FloatType(),
    "DECIMAL(4,2)": t.DecimalType(4, 2),
    "DECIMAL(38,0)": t.DecimalType(38, 0),
    "DECIMAL(38,2)": t.DecimalType(38, 2),
    "BOOLEAN": t.BooleanType(),
    "BINARY": t.BinaryType(),
    "DATE": t.DateType(),
    "TIMESTAMP": t.TimestampType(),
    "TIMESTAMP_NTZ": t.TimestampNTZType(),
    "INTERVAL DAY TO SECOND": t.DayTimeIntervalType(),
    "ARRAY<INT>": ArrayType(t.IntegerType()),
    "ARRAY<INT NOT NULL>": ArrayType(t.IntegerType(), containsNull=False),
    "ARRAY<STRING>": ArrayType(t.StringType()),
    "ARRAY<STRUCT<a: INT>>": ArrayType(StructType().add("a", t.IntegerType())),
    "MAP<STRING, INT>": t.MapType(t.StringType(), t.IntegerType()),
    "MAP<STRING, STRING>": t.MapType(t.StringType(), t.StringType()),
    "MAP<STRING, ARRAY<INT>>": t.MapType(t.StringType(), ArrayType(t.IntegerType())),
    "STRUCT<a: INT>": StructType().add("a", t.IntegerType()),
    "STRUCT<a: INT, b: STRING>": StructType().add("a", t.IntegerType()).add("b", t.StringType()),
}


class Text:
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Silent(Exception):
    __str__ = Text.__str__


def batches(function: Any, kind: str) -> _Batches:
    schema = StructType().add("v", KINDS[kind])
    value = StructType([StructField("value", schema), StructField("error", StringType())])
    item = StructType([StructField("child", StringType()), StructField("value", value)])
    call = _Batches(RowCall(function, Fields(schema)), GIVEN, ArrayType(item))
    return pickle.loads(pickle.dumps(call)) if "<lambda>" not in repr(function) else call


def returned(value: Any, kind: str) -> Any:
    """What comes out of the step for a function that returns this; or what is said of the event."""
    rows = pa.array([{"n": 0, "at": None}], FROM_SPARK)
    ((made,),) = batches(lambda row: {"v": value}, kind)(rows).to_pylist()
    if made["value"]["error"] is None:
        return made["value"]["value"]["v"]
    answer, reason = parse_result(made["value"]["error"])
    assert answer == RowResult.FAILED
    return Exception(reason)


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        ("ü", "STRING", "ü"), (5, "STRING", "5"), (True, "STRING", "true"), (1.5, "STRING", "1.5"),
        (uuid.UUID(int=1), "STRING", str(uuid.UUID(int=1))),
        (dt.date(2020, 1, 2), "STRING", "2020-01-02"),
        (2**63 - 1, "BIGINT", 2**63 - 1), (np.int64(5), "INT", 5), (-128, "TINYINT", -128),
        (5, "DOUBLE", 5.0), (float("inf"), "DOUBLE", float("inf")), (0.5, "FLOAT", 0.5), (np.float32(0.5), "DOUBLE", 0.5),
        (Decimal("1.50"), "DECIMAL(4,2)", Decimal("1.50")), (Decimal("1.5000"), "DECIMAL(4,2)", Decimal("1.50")),
        (7, "DECIMAL(4,2)", Decimal("7.00")), (Decimal("9" * 38), "DECIMAL(38,0)", Decimal("9" * 38)),
        (True, "BOOLEAN", True), (bytearray(b"x"), "BINARY", b"x"),
        (dt.date(1, 1, 1), "DATE", dt.date(1, 1, 1)), (dt.date(9999, 12, 31), "DATE", dt.date(9999, 12, 31)),
        (dt.datetime(1, 1, 1, tzinfo=UTC), "TIMESTAMP", dt.datetime(1, 1, 1, tzinfo=UTC)),
        (dt.datetime.max.replace(tzinfo=UTC), "TIMESTAMP", dt.datetime.max.replace(tzinfo=UTC)),
        (dt.datetime(9999, 12, 31), "TIMESTAMP_NTZ", dt.datetime(9999, 12, 31)),
        (dt.timedelta(days=2), "INTERVAL DAY TO SECOND", dt.timedelta(days=2)),
        ((1, None), "ARRAY<INT>", [1, None]), (np.array([1, 2]), "ARRAY<INT>", [1, 2]),
        ({"a": (1,)}, "MAP<STRING, ARRAY<INT>>", [("a", [1])]),
        ({"a": 1}, "STRUCT<a: INT, b: STRING>", {"a": 1, "b": None}),
        (Row(a=1, b="x"), "STRUCT<a: INT, b: STRING>", {"a": 1, "b": "x"}),
        (None, "INT", None),
    ],
)  # fmt: skip
def test_a_value_that_fits_is_taken_as_it_is(value: Any, kind: str, expected: Any) -> None:
    assert returned(value, kind) == expected


@pytest.mark.parametrize(
    ("value", "kind", "reason"),
    [
        ("a\ud800", "STRING", "a lone surrogate at 1"),
        (["\udfff"], "ARRAY<STRING>", "a lone surrogate at 0"),
        ({"\ud800": 1}, "MAP<STRING, INT>", "a lone surrogate"),
        (b"x", "STRING", "b'x' (bytes) is not a STRING"),
        (Text(), "STRING", "a value that cannot be shown (Text) is not a STRING"),
        (2**63, "BIGINT", "out of range for BIGINT"), (128, "TINYINT", "out of range"), (5.0, "INT", "(float)"),
        (True, "INT", "(bool)"), ("5", "INT", "'5' (str) is not a INT"), (10**5000, "BIGINT", "out of range"),
        (2**53 + 1, "DOUBLE", "would lose digits"), (1e300, "FLOAT", "out of range for FLOAT"), ("1", "DOUBLE", "(str)"),
        (Decimal("NaN"), "DECIMAL(4,2)", "NaN is not a number"), (Decimal("sNaN"), "DECIMAL(4,2)", "sNaN"),
        (Decimal("Infinity"), "DECIMAL(4,2)", "Infinity is not a number"),
        (Decimal("1.005"), "DECIMAL(4,2)", "has more digits than DECIMAL(4,2) keeps"),
        (Decimal("1E+99"), "DECIMAL(38,2)", "out of range"), (Decimal("100"), "DECIMAL(4,2)", "out of range"),
        (1.5, "DECIMAL(4,2)", "(float)"), ("x", "BINARY", "(str)"), (1, "BOOLEAN", "(int)"),
        (dt.datetime(2020, 1, 1), "DATE", "(datetime)"),
        (dt.datetime(1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1))), "TIMESTAMP", "outside the years 1 to 9999"),
        (dt.datetime.max.replace(tzinfo=dt.timezone(-dt.timedelta(hours=1))), "TIMESTAMP", "outside the years"),
        (dt.datetime(2020, 1, 1, tzinfo=UTC), "TIMESTAMP_NTZ", "has a time zone"), (pd.NaT, "TIMESTAMP", "NaT"),
        (dt.timedelta.max, "INTERVAL DAY TO SECOND", "out of range"),
        ({1: "a", "1": "b"}, "MAP<STRING, STRING>", "two keys become the same"), ({None: 1}, "MAP<STRING, INT>", "null"),
        ("text", "ARRAY<STRING>", "(str)"), (3, "ARRAY<INT>", "(int)"), ([None], "ARRAY<INT NOT NULL>", "null"),
        ({"c": 1}, "STRUCT<a: INT>", "not in the schema: 'c'"), ((1, 2, 3), "STRUCT<a: INT>", "is not a STRUCT"),
        ([(1,), (b"",)], "ARRAY<STRUCT<a: INT>>", 'field "a"'),
    ],
    ids=itertools.count(),
)  # fmt: skip
def test_a_value_that_does_not_fit_is_the_error_of_its_event(value: Any, kind: str, reason: str) -> None:
    got = returned(value, kind)
    assert isinstance(got, Exception) and 'field "v"' in str(got), got
    assert reason in str(got) and str(got).encode()


def leave(row: Any) -> Any:
    sys.exit(3)


def endless(row: Any) -> Any:
    def rows() -> Any:
        yield {"v": 1}
        raise SystemExit

    return rows()


@pytest.mark.parametrize(
    ("function", "answer", "reason"),
    [
        (leave, RowResult.FAILED, "the function wants to end its process: SystemExit: 3"),
        (endless, RowResult.FAILED, "the function wants to end its process"),
        (lambda row: 1 // 0, RowResult.FAILED, "ZeroDivisionError: integer division or modulo by zero"),
        (lambda row: (_ for _ in ()).throw(KeyboardInterrupt), RowResult.FAILED, "KeyboardInterrupt: "),
        (lambda row: (_ for _ in ()).throw(Silent()), RowResult.FAILED, "Silent: (its text cannot be had: RuntimeError)"),
        (lambda row: (_ for _ in ()).throw(ValueError("a\ud800")), RowResult.FAILED, "ValueError: a\\ud800"),
        (lambda row: signoff.fail("\ud800"), RowResult.FAILED, "\\ud800"),
        (lambda row: signoff.drop("\ud800"), RowResult.DROPPED, "\\ud800"),
        (lambda row: signoff.drop(Text()), RowResult.DROPPED, "(its text cannot be had: RuntimeError)"),  # type: ignore[arg-type]
        (lambda row: signoff.fail(None, transient=True), RowResult.WAITS, "None"),  # type: ignore[arg-type]
        (lambda row: signoff.fail("a-secret-of-ours"), RowResult.FAILED, "***"),
        (lambda row: signoff.fail("x" * 10**6), RowResult.FAILED, "x" * 9_999 + "…"),
        (lambda row: "text", RowResult.FAILED, "TypeError: the function returned str, not a dict"),
        (lambda row: 5, RowResult.FAILED, "TypeError: 'int' object is not iterable"),
        (lambda row: {"v": 1, Text(): 2}, RowResult.FAILED, "RuntimeError: no text"),
        (lambda row: {"v": 1, "w": 2}, RowResult.FAILED, "what the function returned does not fit: there are fields"),
    ],
)  # fmt: skip
def test_whatever_a_function_does_is_said_of_its_own_event(
    function: Any, answer: RowResult, reason: str
) -> None:
    register_secret("a-secret-of-ours")
    ((made,),) = batches(function, "INT")(pa.array([{"n": 1, "at": None}], FROM_SPARK)).to_pylist()
    got, text = parse_result(made["value"]["error"])
    assert (got, text[: len(reason)]) == (answer, reason)
    assert len(text) <= 10_100


def test_an_event_that_python_cannot_hold_fails_alone() -> None:
    rows = pa.array([{"n": 1, "at": 0}, {"n": 2, "at": 10**18}, None], FROM_SPARK)
    first, second, dead = batches(lambda row: {"v": row["n"]}, "INT")(rows).to_pylist()
    assert first[0]["value"]["value"] == {"v": 1} and dead == []
    assert "cannot be given to the function" in parse_result(second[0]["value"]["error"])[1]


def test_what_arrow_cannot_keep_fails_alone() -> None:
    call = batches(lambda row: {"v": "x"}, "STRING")
    call.call.fields = lambda item: {"v": 5}  # type: ignore[attr-defined] # as if `values` had let it through
    good = {"child": None, "value": {"value": {"v": "x"}, "error": None}}
    bad = {"child": None, "value": {"value": {"v": 5}, "error": None}}
    rows = pa.array([{"n": 1, "at": 0}, {"n": 2, "at": 0}], FROM_SPARK)
    first, second = call._one_by_one(rows, [[good], [bad]]).to_pylist()
    assert first == [good] and "cannot be kept" in parse_result(second[0]["value"]["error"])[1]


def test_a_group_with_an_event_that_cannot_be_read_fails_with_all_its_events() -> None:
    member = pa.struct(
        {"sequence": pa.int64(), "child": pa.string(), "others": pa.list_(pa.int64()), "event": FROM_SPARK}
    )
    lineage = [
        StructField("sequence", LongType()),
        StructField("child", StringType()),
        StructField("others", ArrayType(LongType())),
    ]
    given = ArrayType(StructType([*lineage, StructField("event", GIVEN)]))
    schema = StructType().add("v", LongType())
    made = StructType([*lineage, StructField("value", schema), StructField("error", StringType())])
    call = GroupCall(lambda events: {"v": sum(event["n"] for event in events)}, Fields(schema))
    groups = [
        [{"sequence": n, "child": "", "others": None, "event": {"n": n, "at": at}} for n, at in group]
        for group in ([(1, 0), (2, 0)], [(3, 0), (4, 10**18)])
    ]
    good, bad = _Batches(call, given, ArrayType(made))(pa.array(groups, pa.list_(member))).to_pylist()
    assert [(row["sequence"], row["value"]) for row in good] == [(1, {"v": 3})]
    assert [row["sequence"] for row in bad] == [3, 4] and all(
        "cannot be given" in row["error"] for row in bad
    )
