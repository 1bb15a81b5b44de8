"""What a user's function returns, as values of the declared types: as it is, or not at all.

Spark's own conversion fails for all rows of a task when one value does not fit, and changes some values
without a word (NaN to null, digits of a decimal rounded away, bytes to their repr). Here each value is
converted for itself, and one that does not fit is the error of its event, with its column:

    STRING          text; numbers, booleans, dates, times and UUIDs as their text. Not bytes, not half of
                    a pair of surrogates
    integers        int within the range of the type; not bool, not float, not text
    FLOAT, DOUBLE   float; int if no digit is lost. To FLOAT as the nearest one, unless it is too large
    DECIMAL(p, s)   Decimal or int, finite, with at most s digits after the point and p in all
    BOOLEAN         bool
    BINARY          bytes, bytearray, memoryview
    DATE            date, not datetime
    TIMESTAMP       datetime (without a zone: local time), within the years 1 to 9999 of UTC
    TIMESTAMP_NTZ   datetime without a zone
    TIME            time without a zone
    INTERVAL        timedelta, for DAY TO SECOND
    ARRAY           list or tuple
    MAP             mapping, no two keys of which become the same
    STRUCT          mapping with no other fields, a Row, or a tuple or list of as many values

Scalars and arrays of numpy are taken for what they hold. Null is taken wherever the schema allows it.
"""

from __future__ import annotations

import array
import datetime
import struct
import uuid
from collections.abc import Callable, Mapping
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any

from pyspark.sql import types as t
from pyspark.sql.conversion import LocalDataToArrowConversion

from signoff.pipeline.secrets import excerpt

Convert = Callable[[Any], Any]

_BITS = {t.ByteType: 8, t.ShortType: 16, t.IntegerType: 32, t.LongType: 64}
_HAVE_TEXT = (int, float, Decimal, datetime.date, datetime.time, uuid.UUID)
_EXACT = 2**53
"""Up to here every int is a float."""
_MOST_MICROS = 2**63
_SHOWN = 60


class Misfit(Exception):
    """A value is not what the schema says."""


class Fields:
    """The values of a dict that a user's function returned, in the order of the schema; or an exception."""

    def __init__(self, schema: t.StructType) -> None:
        self.schema = schema
        self._convert: Convert | None = None  # made where it is used: closures are not sent anywhere

    def __getstate__(self) -> dict[str, Any]:
        return {"schema": self.schema, "_convert": None}

    def __call__(self, item: Any) -> Any:
        if not isinstance(item, Mapping):
            raise TypeError(f"the function returned {type(item).__name__}, not a dict")
        if self._convert is None:
            self._convert = _struct(self.schema)
        return self._convert(item)


def converter(kind: t.DataType) -> Convert:
    """Turns a value that is not null into what Arrow takes for this type; raises Misfit."""
    for types, make in _MAKERS:
        if isinstance(kind, types):
            return make(kind)
    return _of_spark(kind)


def _struct(kind: t.StructType) -> Convert:
    fields = [(field.name, _nullable(field.dataType, field.nullable)) for field in kind.fields]
    names = frozenset(kind.names)

    def convert(value: Any) -> dict[str, Any]:
        if isinstance(value, Mapping):
            if unknown := [name for name in value if name not in names]:
                listed = ", ".join(sorted(map(repr, unknown)))
                raise Misfit(f"there are fields that are not in the schema: {listed}")
            given = [value.get(name) for name, _ in fields]
        elif isinstance(value, tuple | list) and len(value) == len(fields):
            given = list(value)
        else:
            raise _misfit(value, kind)
        found = {}
        for (name, of_field), one in zip(fields, given, strict=True):
            try:
                found[name] = of_field(one)
            except Misfit as misfit:
                raise Misfit(f'field "{name}": {misfit}') from None
        return found

    return convert


def _nullable(kind: t.DataType, nullable: bool) -> Convert:
    of_kind = converter(kind)

    def convert(value: Any) -> Any:
        if value is not None:
            return of_kind(value)
        if not nullable:
            raise Misfit(f"null, where {kind.simpleString().upper()} must not be")
        return None

    return convert


def _array(kind: t.ArrayType) -> Convert:
    of_element = _nullable(kind.elementType, kind.containsNull)

    def convert(value: Any) -> list[Any]:
        value = _plain(value)
        if not isinstance(value, list | tuple | array.array):
            raise _misfit(value, kind)
        return [of_element(one) for one in value]

    return convert


def _map(kind: t.MapType) -> Convert:
    of_key, of_value = _nullable(kind.keyType, False), _nullable(kind.valueType, kind.valueContainsNull)

    def convert(value: Any) -> list[tuple[Any, Any]]:
        if not isinstance(value, Mapping):
            raise _misfit(value, kind)
        pairs = [(of_key(key), of_value(one)) for key, one in value.items()]
        if len({repr(key) for key, _ in pairs}) < len(pairs):
            raise Misfit(f"two keys become the same as {kind.keyType.simpleString().upper()}")
        return pairs

    return convert


def _string(kind: t.DataType) -> Convert:
    def convert(value: Any) -> str:
        value = _plain(value)
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, str):
            text = str.__str__(value)
        elif isinstance(value, _HAVE_TEXT):
            text = str(value)
        else:
            raise _misfit(value, kind)
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise Misfit(f"text that is not valid Unicode (a lone surrogate at {error.start})") from None
        return text

    return convert


def _integer(kind: t.DataType) -> Convert:
    limit = 1 << (_BITS[type(kind)] - 1)

    def convert(value: Any) -> int:
        value = _plain(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise _misfit(value, kind)
        if not -limit <= value < limit:
            raise Misfit(f"{_shown(value)} is out of range for {kind.simpleString().upper()}")
        return int(value)

    return convert


def _float(kind: t.DataType) -> Convert:
    single = isinstance(kind, t.FloatType)

    def convert(value: Any) -> float:
        value = _plain(value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _misfit(value, kind)
        if isinstance(value, int) and abs(value) > _EXACT:
            raise Misfit(f"{_shown(value)} would lose digits as {kind.simpleString().upper()}")
        if single:
            try:
                struct.pack("<f", value)
            except OverflowError:
                raise Misfit(f"{_shown(value)} is out of range for FLOAT") from None
        return float(value)

    return convert


def _decimal(kind: t.DecimalType) -> Convert:
    unit = Decimal(1).scaleb(-kind.scale)
    exact = Context(prec=kind.precision, traps=[Inexact, InvalidOperation])
    name = kind.simpleString().upper()

    def convert(value: Any) -> Decimal:
        value = _plain(value)
        if isinstance(value, int) and not isinstance(value, bool):
            value = Decimal(value)
        if not isinstance(value, Decimal):
            raise _misfit(value, kind)
        if not value.is_finite():
            raise Misfit(f"{value} is not a number {name} can hold")
        try:
            return value.quantize(unit, context=exact)
        except Inexact:
            raise Misfit(f"{_shown(value)} has more digits than {name} keeps: round it") from None
        except InvalidOperation:
            raise Misfit(f"{_shown(value)} is out of range for {name}") from None

    return convert


def _boolean(kind: t.DataType) -> Convert:
    def convert(value: Any) -> bool:
        value = _plain(value)
        if not isinstance(value, bool):
            raise _misfit(value, kind)
        return value

    return convert


def _binary(kind: t.DataType) -> Convert:
    def convert(value: Any) -> bytes:
        if not isinstance(value, bytes | bytearray | memoryview):
            raise _misfit(value, kind)
        return bytes(value)

    return convert


def _date(kind: t.DataType) -> Convert:
    def convert(value: Any) -> datetime.date:
        if isinstance(value, datetime.datetime) or not isinstance(value, datetime.date):
            raise _misfit(value, kind)
        return value

    return convert


def _timestamp(kind: t.DataType) -> Convert:
    def convert(value: Any) -> datetime.datetime:
        if not isinstance(value, datetime.datetime) or value != value:  # NaT of pandas is none
            raise _misfit(value, kind)
        try:
            return value.astimezone(datetime.UTC)
        except (OverflowError, ValueError, OSError):
            raise Misfit(f"{value.isoformat()} is outside the years 1 to 9999 in UTC") from None

    return convert


def _without_zone(wanted: type[Any]) -> Callable[[t.DataType], Convert]:
    def make(kind: t.DataType) -> Convert:
        def convert(value: Any) -> Any:
            if not isinstance(value, wanted):
                raise _misfit(value, kind)
            if value.tzinfo is not None:
                raise Misfit(f"{value.isoformat()} has a time zone, {kind.simpleString().upper()} has none")
            return value

        return convert

    return make


def _interval(kind: t.DataType) -> Convert:
    def convert(value: Any) -> datetime.timedelta:
        if not isinstance(value, datetime.timedelta):
            raise _misfit(value, kind)
        if not -_MOST_MICROS <= value // datetime.timedelta(microseconds=1) < _MOST_MICROS:
            raise Misfit(f"{value} is out of range for an interval")
        return value

    return convert


def _of_spark(kind: t.DataType) -> Convert:
    """Rare types (VARIANT, intervals of months): as Spark does it, which verifies less."""
    verify = t._make_type_verifier(kind, nullable=False)
    made = LocalDataToArrowConversion._create_converter(kind, nullable=False)

    def convert(value: Any) -> Any:
        try:
            verify(value)
            return made(value) if made is not None else value
        except Exception as error:  # noqa: BLE001 - whatever it is, the value does not fit
            raise Misfit(f"{type(error).__name__}: {error}") from None

    return convert


_MAKERS: tuple[tuple[Any, Callable[[Any], Convert]], ...] = (
    (t.StringType, _string),  # also CHAR and VARCHAR
    (tuple(_BITS), _integer),
    ((t.FloatType, t.DoubleType), _float),
    (t.DecimalType, _decimal),
    (t.BooleanType, _boolean),
    (t.BinaryType, _binary),
    (t.DateType, _date),
    (t.TimestampType, _timestamp),
    (t.TimestampNTZType, _without_zone(datetime.datetime)),
    (t.TimeType, _without_zone(datetime.time)),
    (t.DayTimeIntervalType, _interval),
    (t.ArrayType, _array),
    (t.MapType, _map),
    (t.StructType, _struct),
)


def _plain(value: Any) -> Any:
    """What a scalar or an array of numpy holds."""
    return value.tolist() if type(value).__module__ == "numpy" else value


def _misfit(value: Any, kind: t.DataType) -> Misfit:
    name = kind.simpleString().upper()
    return Misfit(f"{_shown(value)} ({type(value).__name__}) is not a {name}")


def _shown(value: Any) -> str:
    try:
        return excerpt(repr(value), _SHOWN)
    except Exception:  # noqa: BLE001 - a __repr__ of the user's, or an int with thousands of digits
        return "a value that cannot be shown"
