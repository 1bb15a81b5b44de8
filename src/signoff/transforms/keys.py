"""A hash of the values of some columns, by which two rows are told to have the same key.

Two values are the same as Spark's `dropDuplicates` sees them: 0.0 and -0.0 are, NaN and NaN are, a decimal
is equal to one of its own type. Types are part of the key, but not the width of integers: 1 is 1 as INT and
as BIGINT, and is not '1'. Null inside a struct or array is a value; a key that is null itself is for the
caller to see.

What is hashed is a text in which each value has a mark of its kind and an end, so that no two lists of values
have the same: the hash is of 128 bits, of SHA-256, because clients may choose the keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CharType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
    YearMonthIntervalType,
)

_HEX_DIGITS = 32
_AS_TEXT: dict[type[DataType], str] = {
    **dict.fromkeys((ByteType, ShortType, IntegerType, LongType), "i"),
    DecimalType: "d",
    BooleanType: "o",
    DateType: "t",
    TimestampNTZType: "n",
    YearMonthIntervalType: "y",
    DayTimeIntervalType: "v",
}
"""Types of which two values are the same if their texts are, and the mark of each."""


class NoKey(Exception):
    """Values of this type cannot be compared."""


def key_hash(columns: Sequence[tuple[Column, DataType]]) -> Column:
    """16 bytes, null if one of the columns is. Raises NoKey."""
    texts = [_text(value, kind) for value, kind in columns]
    # `concat` is null if one of its parts is.
    return F.unhex(F.substring(F.sha2(F.concat(*texts).cast("binary"), 256), 1, _HEX_DIGITS))


def _text(value: Column, kind: DataType) -> Column:
    if isinstance(kind, StringType | VarcharType | CharType):
        if isinstance(kind, StringType) and not kind.isUTF8BinaryCollation():
            raise NoKey(f"{kind.simpleString()} (a text with a collation)")
        return F.concat(F.lit("s"), F.octet_length(value).cast("string"), F.lit(":"), value)
    if isinstance(kind, BinaryType):
        return _marked("b", F.hex(value))
    if isinstance(kind, FloatType | DoubleType):
        number = value.cast("double")
        return _marked("f", F.when(number == F.lit(0.0), F.lit("0.0")).otherwise(number.cast("string")))
    if isinstance(kind, TimestampType):
        return _marked("m", F.unix_micros(value).cast("string"))
    if isinstance(kind, ArrayType):
        each = F.transform(value, _element(kind.elementType))
        return F.concat(F.lit("["), F.array_join(each, ""), F.lit("]"))
    if isinstance(kind, StructType):
        fields = [_or_null(_text(value[field.name], field.dataType)) for field in kind.fields]
        return F.when(value.isNotNull(), F.concat(F.lit("("), *fields, F.lit(")")))
    if type(kind) in _AS_TEXT:
        return _marked(_AS_TEXT[type(kind)], value.cast("string"))
    raise NoKey(kind.simpleString())


def _element(kind: DataType) -> Callable[[Column], Column]:
    return lambda value: _or_null(_text(value, kind))


def _or_null(text: Column) -> Column:
    return F.coalesce(text, F.lit("0;"))


def _marked(mark: str, text: Column) -> Column:
    return F.concat(F.lit(mark), text, F.lit(";"))
