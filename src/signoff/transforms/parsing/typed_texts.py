"""Texts into typed columns, as CSV needs it: a value that does not fit is the error of its row, by column.

All of it is Spark's own casts in their `try_` form, so a row costs what a cast costs, and no value is ever
made null because it did not fit: it is reported with its column, its text and what it should have been.
Nothing is rounded or cut: a decimal with more digits than its column has is an error, and so is a number out
of the range of DOUBLE. Spark's casts also take half a value, or one with more behind it (`2026`, `12:30`,
`2026-11-18 and more`, `12d`), and round or cut what is too long; such texts are kept from them (`EXACT_…`).

What the error column holds is put into words on the executors (`Describe`), for the few rows that have one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    FractionalType,
    IntegralType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from signoff.pipeline.model import OnFailure, TypedRows
from signoff.pipeline.secrets import excerpt
from signoff.transforms.contract import FieldError
from signoff.transforms.datetime_patterns import HINT, BadPattern, fault
from signoff.transforms.frame import View
from signoff.transforms.parsing.parse_json import parse_schema, parsed_view
from signoff.transforms.try_expressions import tried

# Patterns for Java and Python alike; possessive, so that no text makes them go back.
EXACT_DECIMAL: Final = r"^\s*+[+-]?+(?:[0-9]++(?:\.[0-9]*+)?+|\.[0-9]++)\s*+$"
EXACT_FLOAT: Final = (
    r"^\s*+(?:[+-]?+(?:[0-9]++(?:\.[0-9]*+)?+|\.[0-9]++)(?:[eE][+-]?+[0-9]++)?+"
    r"|(?i:[+-]?+inf(?:inity)?+|nan))\s*+$"
)
"""Java also takes `12d` and `0x1p3`."""
EXACT_DATE: Final = r"^\s*+[0-9]{4}-[0-9]{2}-[0-9]{2}\s*+$"
_DAY, _MINUTE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}", r"[T ][0-9]{2}:[0-9]{2}"
_SECONDS = r":[0-9]{2}(?:\.[0-9]{1,6}+0*+)?+"
_ZONE = r" ?(?:[+-][0-9]{1,2}(?::?[0-9]{2}){0,2}|[A-Za-z][A-Za-z0-9_+:/-]*+)"
EXACT_LOCAL_TIME: Final = rf"^\s*+{_DAY}(?:{_MINUTE}(?:{_SECONDS})?+)?+\s*+$"
EXACT_TIME: Final = rf"^\s*+{_DAY}(?:{_MINUTE}(?:{_SECONDS}(?:{_ZONE})?+)?+)?+\s*+$"

IN_WORDS: Final = "\x01"
"""An error column's text that begins so was written here, and is for `Describe`."""
WHOLE_ROW: Final = "\x02"
"""One that begins so is a row that cannot be read at all."""
_NEXT, _PART = "\x1e", "\x1f"
_BAD, _EMPTY, _MISSING, _COUNT = "v", "n", "m", "c"
_SHOWN = 60
"""Characters of a value that are shown."""


@dataclass(frozen=True)
class Rules:
    """How texts are read."""

    schema: StructType
    null_values: Sequence[str]
    timestamp_format: str | None = None
    date_format: str | None = None

    @classmethod
    def of(
        cls, schema: str, null_values: Sequence[str], timestamp_format: str | None, date_format: str | None
    ) -> Rules:
        """Raises FieldError for a schema or a pattern that texts cannot be read with."""
        parsed = parse_schema(schema)
        for field in parsed.fields:
            if isinstance(field.dataType, ArrayType | MapType | StructType):
                raise FieldError(
                    "schema",
                    "type-error",
                    f'column "{field.name}" is {field.dataType.simpleString()}, which no field of CSV can be',
                    "read it as STRING and parse it with a parse_json or a select behind",
                )
        for name, pattern in ("timestamp_format", timestamp_format), ("date_format", date_format):
            if pattern is not None and (wrong := fault(pattern)) is not None:
                raise FieldError(name, "bad-pattern", str(BadPattern(pattern, wrong)), HINT)
        return cls(parsed, tuple(null_values), timestamp_format, date_format)

    def value(self, text: Column, kind: DataType) -> Column:
        """Null where the text is, or does not fit."""
        if isinstance(kind, TimestampType) and self.timestamp_format:
            return F.try_to_timestamp(text, F.lit(self.timestamp_format))
        if isinstance(kind, TimestampNTZType) and self.timestamp_format:
            return tried({"at": F.to_timestamp_ntz(text, F.lit(self.timestamp_format))})["v0"]
        if isinstance(kind, DateType) and self.date_format:
            return tried({"on": F.to_date(text, self.date_format)})["v0"]
        if isinstance(kind, DecimalType):
            exact = text.rlike(EXACT_DECIMAL) & (_digits_behind(text) <= F.lit(kind.scale))
            return F.when(exact, text.try_cast(kind))
        if isinstance(kind, FloatType | DoubleType):
            value = text.try_cast(kind)
            fits = text.rlike(EXACT_FLOAT) & ~_is_out_of_range(text, value)
            return F.when(fits, value)
        for of, pattern in _EXACT.items():
            if isinstance(kind, of):
                return F.when(text.rlike(pattern), text.try_cast(kind))
        return text.try_cast(kind)


_EXACT: Mapping[type[DataType], str] = {
    DateType: EXACT_DATE,
    TimestampType: EXACT_TIME,
    TimestampNTZType: EXACT_LOCAL_TIME,
}


def _is_out_of_range(text: Column, value: Column) -> Column:
    """Whether a number became infinite, or 0, that is neither."""
    infinite = (F.abs(value) == F.lit(float("inf"))) & text.rlike("[0-9]")
    return infinite | ((value == F.lit(0.0)) & text.rlike(r"^\s*+[+-]?+[0-9.]*[1-9]"))


def _digits_behind(text: Column) -> Column:
    """How many digits stand behind the point, without zeros at the end."""
    return F.length(F.rtrim(F.regexp_extract(text, r"\.([0-9]*)", 1), F.lit("0")))


def typed_view(
    stage: str,
    view: View,
    texts: Mapping[str, Column],
    rules: Rules,
    policy: OnFailure,
    *,
    wrong: Column | None = None,
    missing: Column | None = None,
    describe: Describe | None = None,
    keep: tuple[str, ...] = (),
) -> View:
    """The rows whose texts all fit, with typed columns. `texts`: by the names of the schema.

    `wrong`: what is wrong with the row itself, null for most. `missing`: where a text that is null was not
    there at all, the names of those that were.
    """
    frame, fields = view.frame, rules.schema.fields
    raw = frame.compute(view, dict(texts))
    inner = View(frame, view.alive, {})
    empty = {name: F.col(column).isin([*rules.null_values]) for name, column in raw.items()}
    given = {name: F.when(~empty[name], F.col(column)) for name, column in raw.items()}
    clean = frame.compute(inner, given) if rules.null_values else raw
    values = frame.compute(
        inner, {field.name: rules.value(F.col(clean[field.name]), field.dataType) for field in fields}
    )
    errors = []
    for index, field in enumerate(fields):
        text, value = F.col(clean[field.name]), F.col(values[field.name])
        found = F.when(
            text.isNotNull() & value.isNull(), _error(index, _BAD, F.translate(text, _NEXT + _PART, "  "))
        )
        if missing is not None:
            found = found.when(F.col(raw[field.name]).isNull(), _error(index, _MISSING, missing))
        if not field.nullable:
            found = found.when(text.isNull(), _error(index, _EMPTY, F.lit("")))
        errors.append(found)
    several = F.concat_ws(_NEXT, *errors)
    said = F.when(several != F.lit(""), F.concat(F.lit(IN_WORDS), several))
    error = frame.compute(view, {"error": said if wrong is None else F.coalesce(wrong, said)})["error"]
    frame.add_error(stage, error, policy, describe or Describe(rules))
    return parsed_view(view, error, {name: F.col(column) for name, column in values.items()}, keep)


def typed_rows(stage: str, view: View, rows: TypedRows, policy: OnFailure) -> View:
    """The rows of a source that gives objects of texts as its payload."""
    rules = Rules.of(rows.schema, rows.null_values, rows.timestamp_format, rows.date_format)
    names = rules.schema.names if rows.named else [f"_c{place}" for place in range(len(rules.schema))]
    frame = view.frame
    strings = StructType([StructField(name, StringType()) for name in names])
    row = frame.compute(view, {"row": F.from_json(F.col("payload"), strings)})["row"]
    keys = F.json_object_keys(F.col("payload"))
    texts = {name: F.col(row)[given] for name, given in zip(rules.schema.names, names, strict=True)}
    wrong = None
    if not rows.named:
        count = F.coalesce(F.size(keys), F.lit(0))
        wrong = F.when(
            count != F.lit(len(names)),
            F.concat(F.lit(IN_WORDS), _error(0, _COUNT, count.cast("string"))),
        )
    missing = F.concat_ws(", ", keys)
    return typed_view(stage, view, texts, rules, policy, wrong=wrong, missing=missing, keep=rows.keep)


def _error(index: int, kind: str, value: Column) -> Column:
    return F.concat(F.lit(f"{index}{_PART}{kind}{_PART}"), value)


class Describe:
    """From what the error column holds to the reason of a dead letter."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules

    def __call__(self, text: str) -> str:
        parts = [part.split(_PART, 2) for part in text[1:].split(_NEXT)]
        if not text.startswith(IN_WORDS) or any(len(part) < 3 for part in parts):
            return self.line(text.removeprefix(WHOLE_ROW))
        return "; ".join(self._one(*part) for part in parts)

    def line(self, text: str) -> str:
        """What is wrong with a whole row."""
        return text

    def _one(self, index: str, kind: str, value: str) -> str:
        field = self.rules.schema.fields[int(index)]
        if kind == _COUNT:
            return f"row has {value} fields, the schema has {len(self.rules.schema)}"
        if kind == _MISSING:
            return f'there is no column "{field.name}"; there is: {value}'
        if kind == _EMPTY:
            return f'column "{field.name}" is empty, and is NOT NULL'
        return f'column "{field.name}": {_quoted(value)} {self._why(field.dataType, value)}'

    def _why(self, kind: DataType, value: str) -> str:
        pattern = self.rules.date_format if isinstance(kind, DateType) else self.rules.timestamp_format
        if isinstance(kind, DateType | TimestampType | TimestampNTZType) and pattern:
            return f'does not match "{pattern}"'
        name = kind.simpleString().upper()
        number = {
            IntegralType: r"\s*[+-]?\d+\s*",
            DecimalType: r"\s*[+-]?\d+(\.\d*)?\s*",
            FractionalType: EXACT_FLOAT,
        }
        of = next((each for each in number if isinstance(kind, each)), None)
        if of is not None and re.fullmatch(number[of], value):
            return f"does not fit into {name}"
        return f"is not {'an' if name[0] in 'AEIOU' else 'a'} {name}"


def _quoted(value: str) -> str:
    return f'"{excerpt(value, _SHOWN)}"'
