"""Parsers of payloads, as far as they need no Spark: what they parse is what a plain parser says."""

from __future__ import annotations

import json
import math
import random
import struct
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    BooleanType,
    ByteType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from signoff.transforms.parsing.flat_json import FlatJson
from signoff.transforms.parsing.parse_csv import _Describe
from signoff.transforms.parsing.parse_json import DescribeJson
from signoff.transforms.parsing.typed_texts import Rules
from tests.fuzz.targets import mutated, target

KINDS = (
    LongType,
    IntegerType,
    ShortType,
    ByteType,
    DoubleType,
    FloatType,
    StringType,
    BooleanType,
    TimestampType,
)
SCHEMA = StructType([StructField(f"c{place}", kind()) for place, kind in enumerate(KINDS)])
BITS = {"long": 64, "integer": 32, "short": 16, "byte": 8}
FLAT = FlatJson.of(SCHEMA, None)
VALUES = (
    "0", "-0", "1", "-1", "127", "128", "-129", "32768", "2147483648", "9223372036854775807",
    "9223372036854775808", "1.0", "1e2", "-1.5E-7", "0.1", "3.4028236e38", "1e308", "1e309", "1e-400",
    "0.30000000000000004", "NaN", "-Infinity", "Inf", "01", "1.", ".5", "+1", "0x1", "true", "false", "null",
    '""', '"x"', '"1"', '"a\\u0000b"', '"\\ud83d\\ude00"', '"\\ud83d"', '"\\/"', '"\\x"', '"😀"', '"tab\t"',
    '"}"', '"{"', "[]", "[1, 2]", "{}", '{"c0": 1}', '"', "", '"2024-05-01T00:00:00Z"',
    '"2024-05-01 00:00:00"', '"2024-05-01T00:00:00.5"', '"2024-02-30T00:00:00Z"', '"2024-05-01T24:00:00Z"',
    '"2024-05-01T00:00:00+02:00"', '"9999-12-31 23:59:59.999999"', '"1582-10-10T00:00:00Z"',
)  # fmt: skip
LINES = (b'1,a,"b ""c""",2024-05-01', b"1;2", b'"open', b",,,", b'a,"b\nc"', b"\t", b"x" * 300)


def _text(generator: random.Random) -> str:
    names = generator.sample([*SCHEMA.names, "other", "C0"], generator.randint(0, 4))
    text = "{" + ", ".join(f'"{name}": {generator.choice(VALUES)}' for name in names) + "}"
    if generator.random() < 0.2:
        text = mutated(generator, text.encode(), most=3).decode(errors="replace")
    return text


@target("flat-json", weight=40)
def flat_json(generator: random.Random) -> None:
    """What is parsed in bulk is what JSON says; no text runs into another; each keeps its place."""
    assert FLAT is not None
    texts = [_text(generator) for _ in range(generator.choice((1, 2, 5, 40)))]
    if generator.random() < 0.05:
        texts[generator.randrange(len(texts))] = None  # type: ignore[call-overload]
    parsed, columns = FLAT.parse(pa.array(texts, pa.string()))
    assert len(parsed) == len(texts) and all(len(column) == len(texts) for column in columns)
    columns[-1] = columns[-1].cast(pa.int64())
    for place, (text, done) in enumerate(zip(texts, parsed.to_pylist(), strict=True)):
        if done:
            wanted = json.loads(text)
            for field, column in zip(SCHEMA, columns, strict=True):
                _must_be(field, column[place].as_py(), wanted.get(field.name), text)


def _must_be(field: StructField, found: Any, wanted: Any, text: str) -> None:
    kind = field.dataType.typeName()
    if wanted is None:
        assert found is None, text
    elif kind == "timestamp":
        moment = datetime.fromisoformat(wanted.removesuffix(" UTC"))
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        assert found == round(moment.timestamp()) * 1_000_000 + moment.microsecond or (
            abs(found - moment.timestamp() * 1e6) < 1
        ), text
    elif kind == "float":
        assert struct.pack("f", found) == struct.pack("f", wanted) or math.isclose(
            found, wanted, rel_tol=1e-6
        ), text
    elif kind in BITS:
        limit = 1 << (BITS[kind] - 1)
        assert type(wanted) is int and -limit <= wanted < limit and found == wanted, text
    elif kind == "double":
        assert type(wanted) in (int, float) and found == float(wanted), text
    else:
        assert found == wanted and type(found) is type(wanted), text


@target("reasons", weight=400)
def reasons(generator: random.Random) -> None:
    """Of a text that did not parse it is said why, whatever it is."""
    describe = generator.choice((
        DescribeJson(SCHEMA, generator.choice((None, "yyyy"))),
        _Describe(Rules(SCHEMA, (), None, None), generator.choice(",;\t|é ")),
    ))  # fmt: skip
    text = generator.choice((_text(generator).encode(), *LINES))
    reason = describe(mutated(generator, text).decode(errors="replace"))  # type: ignore[operator]
    assert reason
    reason.encode()
