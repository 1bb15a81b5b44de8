"""What is parsed in bulk is exactly what `parse_json` makes of the same text in Spark."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from signoff.transforms.contract import Step
from signoff.transforms.frame import begin
from signoff.transforms.parsing.flat_json import FlatJson
from signoff.transforms.parsing.parse_json import ParseJsonConfig

pytestmark = pytest.mark.spark

SCHEMA = "n BIGINT, i INT, h SMALLINT, t TINYINT, x DOUBLE, f FLOAT, s STRING, b BOOLEAN, `at` TIMESTAMP"
NAMES = ["n", "i", "h", "t", "x", "f", "s", "b", "at"]
VALUES = [
    "0", "-0", "1", "-1", "127", "128", "255", "-129", "32768", "2147483648", "9223372036854775807",
    "9223372036854775808", "1.0", "1e2", "-1.5E-7", "0.1", "3.4028236e38", "1e308", "1e309", "1e-400",
    "123456789012345678901234567890", "0.30000000000000004", "16777217", "1.00000017881393432617187499",
    "NaN", "-Infinity", "Inf", "01", "1.", ".5", "+1", "0x1", "true", "false", "null", "True",
    '""', '"x"', '"1"', '"NaN"', '"a\\u0000b"', '"\\ud83d\\ude00"', '"\\ud83d"', '"\\/"', '"\\x"',
    '"😀"', '"tab\t"', '"}"', '"{"', "[]", "[1, 2]", "{}", '{"n": 1}', '"', "",
    '"2024-05-01T00:00:00Z"', '"2024-05-01 00:00:00"', '"2024-05-01T00:00:00.5"', '"2024-05-01"',
    '"2024-05-01T00:00:00.123456789Z"', '"2024-5-1 1:2:3"', '"2024-05-01T00:00:00+02:00"',
    '"2024-05-01 00:00:00 UTC"', '"2024-02-30T00:00:00Z"', '"1582-10-10T00:00:00Z"',
    '"2024-05-01T24:00:00Z"', '"2024-05-01T00:00:00 Europe/Prague"', '"0000-01-01 00:00:00"',
    '"2024-05-01T00:00:00+18:00"', '"2024-05-01T00:00:00-17:59"', '"9999-12-31 23:59:59.999999"',
]  # fmt: skip


def texts(number: int) -> list[str]:
    """Objects with values that fit and that do not, some of them damaged."""
    rng = random.Random(5)
    made: list[str] = []
    for _ in range(number):
        names = rng.sample([*NAMES, "N", "other"], rng.randint(0, 4))
        text = "{" + ", ".join(f'"{name}": {value(rng)}' for name in names) + "}"
        if rng.random() < 0.1:
            place = rng.randrange(len(text) + 1)
            text = text[:place] + rng.choice('"}{, \n]:\\e') + text[place:]
        made.append(text)
    return made


def value(rng: random.Random) -> str:
    if rng.random() < 0.6:
        return rng.choice(VALUES)
    digits = "".join(rng.choices("0123456789", k=rng.randint(1, 22)))
    whole, fraction = digits[: rng.randint(1, 20)].lstrip("0") or "0", digits[rng.randint(0, 20) :]
    exponent = f"e{rng.randint(-330, 310)}" if rng.random() < 0.2 else ""
    return rng.choice(["", "-"]) + whole + (f".{fraction}" if fraction else "") + exponent


def in_spark(rows: DataFrame, config: ParseJsonConfig) -> list[dict[str, Any]]:
    frame, view = begin(rows, ("payload",), "incoming", "dead_letter")
    out = config.compile(Step("parsed", Path()), view)[None]
    error = next(e.column for e in frame.errors if e.stage == "parsed")
    columns = [F.col(out.columns[name]).alias(name) for name in NAMES]
    columns[-1] = F.unix_micros(F.col(out.columns["at"])).alias("at")
    found = frame.df.select("_sequence", F.col(error).alias("error"), *columns).orderBy("_sequence").collect()
    return [row.asDict() for row in found]


@pytest.mark.parametrize("pattern", [None, "yyyy-MM-dd HH:mm:ss z", "yyyy-MM-dd'T'HH:mm:ssXXX"])
def test_whatever_is_parsed_in_bulk_spark_parses_alike(spark: SparkSession, pattern: str | None) -> None:
    config = ParseJsonConfig(input="incoming", schema=SCHEMA, timestamp_format=pattern)
    flat = config.flat_json()
    assert flat is not None
    given = texts(6_000)
    rows = spark.createDataFrame(list(enumerate(given)), "_sequence BIGINT, payload STRING").selectExpr(
        "*", "current_timestamp() AS received_at", "CAST(NULL AS STRING) AS error"
    )
    compared = 0
    for text, one, row in zip(given, _alone(flat, given), in_spark(rows, config), strict=True):
        if one is not None:
            assert row["error"] is None, text
            assert json.dumps({name: row[name] for name in NAMES}) == json.dumps(one), text
            compared += 1
    assert compared > 500


def _alone(flat: FlatJson, given: list[str]) -> list[dict[str, Any] | None]:
    """In groups of a few: where so many do not fit, those around them would not be tried."""
    made: list[dict[str, Any] | None] = []
    for start in range(0, len(given), 2):
        parsed, columns = flat.parse(pa.array(given[start : start + 2]))
        columns[-1] = columns[-1].cast(pa.int64())
        for at, done in enumerate(parsed.to_pylist()):
            row = {name: column[at].as_py() for name, column in zip(NAMES, columns, strict=True)}
            made.append(row if done else None)
    return made
