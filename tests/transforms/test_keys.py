"""Which keys are the same: as Spark's `dropDuplicates` sees it, but for null, which is like no other."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType, LongType, MapType, StringType, StructType

from signoff.pipeline.durations import Duration
from signoff.transforms.dedupe import DedupeConfig
from signoff.transforms.keys import NoKey, key_hash

VALUES = {
    "DOUBLE": ["0.0D", "-0.0D", "double('NaN')", "-double('NaN')", "1.5D", "1e300D", "double('Infinity')"],
    "FLOAT": ["float('0')", "float('-0')", "float('NaN')", "float('0.1')"],
    "BIGINT": ["1L", "-1L", "9223372036854775807L", "0L"],
    "DECIMAL(38, 18)": ["1.5", "1.50", "1.500000000000000001", "-1.5", "0", "-0"],
    "STRING": ["''", "'a'", "'A'", "'1'", "'é'", "'e\\u0301'", "'a;s1:b'"],
    "BINARY": ["X''", "X'00'", "X'0000'"],
    "BOOLEAN": ["true", "false"],
    "DATE": ["date'2024-01-01'", "date'0001-01-01'"],
    "TIMESTAMP": [
        "timestamp'2024-01-01 00:00:00 UTC'",
        "timestamp'2024-01-01 01:00:00+01:00'",
        "timestamp'2024-01-01 00:00:00.000001 UTC'",
    ],
    "TIMESTAMP_NTZ": ["timestamp_ntz'2024-01-01 00:00:00'", "timestamp_ntz'2024-01-01 00:00:00.000001'"],
    "ARRAY<INT>": [
        "array()",
        "array(1)",
        "array(1, 2)",
        "array(12)",
        "array(cast(null as int))",
        "array(null, null)",
    ],
    "STRUCT<a: INT, b: DOUBLE>": [
        "named_struct('a', 1, 'b', null)",
        "named_struct('a', null, 'b', 1D)",
        "named_struct('a', null, 'b', null)",
        "named_struct('a', 1, 'b', 0D)",
        "named_struct('a', 1, 'b', -0D)",
    ],
    "ARRAY<STRUCT<s: STRING>>": [
        "array(named_struct('s', 'a'), named_struct('s', 'b'))",
        "array(named_struct('s', 'ab'))",
        "array(named_struct('s', 'a)(s1:b'))",
    ],
}


@pytest.mark.spark
def test_values_are_the_same_as_they_are_for_spark(spark: Any) -> None:
    for kind, values in VALUES.items():
        rows = spark.range(1).select(
            F.explode(F.array(*(F.expr(f"cast({value} as {kind})") for value in values))).alias("v")
        )
        hashed = rows.select("v", key_hash([(F.col("v"), rows.schema["v"].dataType)]).alias("key")).collect()
        assert all(row["key"] is not None and len(row["key"]) == 16 for row in hashed), kind
        assert len({bytes(row["key"]) for row in hashed}) == rows.dropDuplicates(["v"]).count(), kind


@pytest.mark.spark
def test_a_null_makes_no_key_and_lists_of_values_are_told_apart(spark: Any) -> None:
    pairs = [*itertools.product(("", "a", "ab", "b", "s1:a"), repeat=2)]
    rows = spark.createDataFrame([*pairs, (None, "a"), ("a", None)], "a STRING, b STRING")
    both = [(F.col(name), StringType()) for name in ("a", "b")]
    found = [row[0] for row in rows.select(key_hash(both)).collect()]
    assert found[-2:] == [None, None]
    assert len({bytes(key) for key in found[:-2]}) == len(pairs)


@pytest.mark.spark
def test_one_is_one_in_every_width_and_is_not_the_text(spark: Any) -> None:
    texts = ["1", "1L", "1S", "1Y", "'1'", "1.0", "1D", "true"]
    rows = spark.range(1).select(*(F.expr(text).alias(f"c{n}") for n, text in enumerate(texts)))
    hashes = [key_hash([(F.col(field.name), field.dataType)]) for field in rows.schema]
    found = [bytes(key) for key in rows.select(*hashes).first()]
    assert len(set(found[:4])) == 1
    assert len(set(found)) == len(texts) - 3


@pytest.mark.spark
def test_values_that_cannot_be_compared_are_no_keys(spark: Any) -> None:
    with_map = StructType().add("m", MapType(StringType(), LongType()))
    for kind in (with_map["m"].dataType, ArrayType(with_map), StringType("UTF8_LCASE")):
        with pytest.raises(NoKey):
            key_hash([(F.col("v"), kind)])


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1 hour", 3600),
        ("10 minutes", 600),
        ("1 day 2 hours", 93600),
        ("30m", 1800),
        (5, 5),
        ("INTERVAL 1 week", 604800),
    ],
)
def test_how_long_keys_are_remembered_is_written_in_both_ways(text: Duration | str, seconds: float) -> None:
    assert DedupeConfig(input="x", keys=("k",), within=text).within == seconds  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["soon", "1 month", "-1 hour", "0s"])
def test_a_time_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="within"):
        DedupeConfig(input="x", keys=("k",), within=text)  # type: ignore[arg-type]
