"""Rows of every type Spark SQL can hand to a sink, and the way back from what a sink made of them."""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from signoff.sinks.contract import EVENT_ID, BatchRef, Part, Refusal, Sink
from signoff.sinks.retry import Mask

BERLIN = pa.timestamp("us", "Europe/Berlin")
EVERY_TYPE = pa.schema(
    [
        pa.field(EVENT_ID, pa.string(), nullable=False),
        pa.field("a_bool", pa.bool_()),
        pa.field("a_byte", pa.int8()),
        pa.field("a_short", pa.int16()),
        pa.field("an_int", pa.int32()),
        pa.field("a_long", pa.int64()),
        pa.field("a_float", pa.float32()),
        pa.field("a_double", pa.float64()),
        pa.field("a_decimal", pa.decimal128(38, 18)),
        pa.field("a_string", pa.string()),
        pa.field("a_binary", pa.binary()),
        pa.field("a_date", pa.date32()),
        pa.field("a_timestamp", BERLIN),
        pa.field("a_local_time", pa.timestamp("us")),
        pa.field("an_interval", pa.duration("us")),
        pa.field("Mixed Case", pa.string()),
        pa.field("an_array", pa.list_(pa.float64())),
        pa.field("a_struct", pa.struct([("x", pa.int32()), ("at", BERLIN), ("tags", pa.list_(pa.string()))])),
        pa.field("a_map", pa.map_(pa.string(), pa.decimal128(10, 2))),
        pa.field("nothing", pa.null()),
    ]
)

_NOON = dt.datetime(2021, 5, 1, 12, 0, 0, tzinfo=dt.UTC)
_VALUES: list[dict[str, Any]] = [
    {
        "a_bool": True,
        "a_byte": -128,
        "a_short": 32767,
        "an_int": -(2**31),
        "a_long": 2**63 - 1,
        "a_float": 1.5,
        "a_double": 6.0,
        "a_decimal": Decimal("12345678901234567890.123456789012345678"),
        "a_string": 'quote " backslash \\ newline \n tab \t bell \x07 ä 漢 🚀 \\.',
        "a_binary": bytes(range(256)),
        "a_date": dt.date(2021, 5, 1),
        "a_timestamp": _NOON,
        "a_local_time": dt.datetime(2021, 5, 1, 12, 0, 0, 123456),
        "an_interval": dt.timedelta(days=-1, seconds=3, microseconds=5),
        "Mixed Case": "",
        "an_array": [1.0, None, math.inf, -0.5],
        "a_struct": {"x": 1, "at": _NOON, "tags": ['"', ""]},
        "a_map": [("k", Decimal("1.10")), ('"\n', None)],
    },
    {},
    {
        "a_bool": False,
        "a_byte": 127,
        "a_short": -32768,
        "an_int": 2**31 - 1,
        "a_long": -(2**63),
        "a_float": math.inf,
        "a_double": -math.inf,
        "a_decimal": Decimal("-0.000000000000000001"),
        "a_string": "a\n\\.\nb,c;'d'",
        "a_binary": b"",
        "a_date": dt.date(1, 1, 1),
        "a_timestamp": dt.datetime(1950, 1, 1, 0, 0, 0, 1, tzinfo=dt.UTC),
        "a_local_time": dt.datetime(9999, 12, 31, 23, 59, 59),
        "an_interval": dt.timedelta(0),
        "Mixed Case": "null",
        "an_array": [],
        "a_struct": {"x": None, "at": None, "tags": None},
        "a_map": [],
    },
    {"a_double": 1e300, "a_float": 0.25, "a_string": "NULL", "a_struct": None, "an_array": [0.1]},
]


def every_type() -> pa.RecordBatch:
    """Ordinary values, extremes, empty ones and nulls. Not NaN and -0.0, which SQLite cannot hold."""
    rows = [{EVENT_ID: f"incoming/{number}", **values} for number, values in enumerate(_VALUES)]
    return pa.RecordBatch.from_pylist(rows, EVERY_TYPE)


def numbered(count: int, start: int = 0, text: str = "row") -> pa.RecordBatch:
    """Rows `incoming/<start>` and on, with a number and a text."""
    numbers = range(start, start + count)
    return pa.record_batch(
        {
            EVENT_ID: pa.array([f"incoming/{number}" for number in numbers], pa.string()),
            "number": pa.array(numbers, pa.int64()),
            "text": pa.array([f"{text} {number}" for number in numbers], pa.string()),
        }
    )


def spoiled(count: int, bad: set[int]) -> pa.RecordBatch:
    """Numbered rows, of which some hold text that is no UTF-8."""
    texts = [b"broken \xff" if number in bad else f"row {number}".encode() for number in range(count)]
    rows = numbered(count)
    return rows.set_column(2, "text", pa.array(texts, pa.binary()).view(pa.string()))


def batch_ref(start: int = 0, end: int = 10, replay: int = 0) -> BatchRef:
    return BatchRef("incoming", start, end, replay)


def write_part(
    sink: Sink, rows: pa.RecordBatch, batch: BatchRef, partition: int = 0, attempt: int = 0
) -> tuple[list[Refusal], bytes | None]:
    """What a task does with its rows."""
    writer = sink.open(Part(batch, partition, attempt))
    try:
        refusals = list(writer.write(rows))
        return refusals, writer.close()
    except BaseException:
        writer.abort()
        raise


def write_batch(
    sink: Sink, rows: pa.RecordBatch, batch: BatchRef | None = None, attempt: int = 0
) -> list[Refusal]:
    """What the engine does with a batch of one part."""
    batch = batch or batch_ref(0, rows.num_rows)
    refusals, part = write_part(sink, rows, batch, 0, attempt)
    sink.commit(batch, [part] if part is not None else [])
    return refusals


def places(mask: Mask) -> list[int]:
    return [index for index, taken in enumerate(mask.tolist()) if taken]


def parse(text: str | bytes) -> Any:
    """JSON with every digit."""
    return json.loads(text, parse_float=Decimal)


def from_json(value: Any, kind: pa.DataType) -> Any:
    """The Python value Arrow would give for what a sink wrote as JSON."""
    if value is None:
        return None
    if pt.is_struct(kind):
        fields = [kind.field(place) for place in range(kind.num_fields)]
        assert list(value) == [one.name for one in fields]
        return {one.name: from_json(value[one.name], one.type) for one in fields}
    if pt.is_map(kind):
        return [
            (from_key(key, kind.key_type), from_json(item, kind.item_type)) for key, item in value.items()
        ]
    if pt.is_list(kind):
        return [from_json(item, kind.value_type) for item in value]
    if pt.is_floating(kind):
        return float(np.float32(value)) if pt.is_float32(kind) else float(value)
    if pt.is_decimal(kind):
        return Decimal(value)
    if pt.is_boolean(kind) or pt.is_integer(kind):
        assert type(value) in (bool, int)
        return value
    return from_text(value, kind)


def from_key(key: str, kind: pa.DataType) -> Any:
    if pt.is_boolean(kind) or pt.is_integer(kind) or pt.is_decimal(kind):
        return from_json(parse(key), kind)
    return from_json(key, kind)


def from_text(value: str, kind: pa.DataType) -> Any:
    if pt.is_binary(kind):
        return base64.b64decode(value, validate=True)
    if pt.is_timestamp(kind):
        assert value.endswith("Z") == bool(kind.tz)
        return dt.datetime.fromisoformat(value)
    if pt.is_date(kind):
        return dt.date.fromisoformat(value)
    if pt.is_time(kind):
        return dt.time.fromisoformat(value)
    if pt.is_duration(kind):
        micros = Decimal(value.removeprefix("PT").removesuffix("S")) * 1_000_000
        return dt.timedelta(microseconds=int(micros))
    return value


def comparable(value: Any) -> Any:
    """The same value with NaN made equal to itself, and -0.0 told from 0.0."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, dict):
        return {key: comparable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [comparable(item) for item in value]
    return value
