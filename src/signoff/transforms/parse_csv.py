"""`parse_csv`: one line of separated values into typed columns."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field, field_validator
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StringType, StructField, StructType

from signoff.transforms.contract import Step, Transform
from signoff.transforms.frame import View
from signoff.transforms.parse_json import parse_schema, parsed_view, text_column

_CORRUPT = "__corrupt"
_NO_SEPARATORS = '"\\\r\n\0'


class ParseCsvConfig(Transform):
    summary: ClassVar[str] = "Parse a line of separated values into typed columns."
    type: Literal["parse_csv"] = "parse_csv"
    schema_: str = Field(alias="schema")
    """Columns and types in the order of the fields, as in Spark SQL."""
    column: str = "payload"
    """Column that holds the line."""
    separator: str = Field(default=",", min_length=1, max_length=1)
    """Character between two fields; not a quote, a backslash, a line break or NUL."""
    timestamp_format: str | None = None
    """Spark datetime pattern of TIMESTAMP fields; by default ISO 8601."""
    keep: tuple[str, ...] = ()
    """Columns of the input that go on besides the parsed ones."""

    @field_validator("separator")
    @classmethod
    def _separates(cls, value: str) -> str:
        if value in _NO_SEPARATORS:
            raise ValueError("a quote, a backslash, a line break or NUL cannot separate fields")
        return value

    def compile(self, step: Step, view: View) -> Mapping[str | None, View]:
        frame = view.frame
        schema = parse_schema(self.schema_)
        text = F.col(text_column(self.column, view))
        options = {"columnNameOfCorruptRecord": _CORRUPT, "mode": "PERMISSIVE", "sep": self.separator}
        options |= {"timestampFormat": self.timestamp_format} if self.timestamp_format else {}
        ddl = StructType([*schema.fields, StructField(_CORRUPT, StringType())]).toDDL()
        value = frame.compute(view, {"value": F.from_csv(text, ddl, options)})["value"]
        parsed = View(frame, view.alive, {**view.columns, "__value": value})
        bad = F.col(value).isNull() | F.col(value)[_CORRUPT].isNotNull() | (F.trim(text) == F.lit(""))
        error = frame.compute(parsed, {"error": F.when(bad, F.coalesce(text, F.lit("")))})["error"]
        frame.add_error(step.name, error, self.on_error, _Describe(schema, self.separator))
        fields = {name: F.col(value)[name] for name in schema.names}
        return {None: parsed_view(parsed, error, fields, self.keep)}


class _Describe:
    def __init__(self, schema: StructType, separator: str) -> None:
        self.schema, self.separator = schema, separator

    def __call__(self, text: str) -> str:
        if not text.strip():
            return "the line is empty"
        try:
            got = len(next(csv.reader([text], delimiter=self.separator), []))
        except csv.Error:  # a line break in it, or a field of more than 128 KiB
            return "it is not one line of separated values"
        if got != len(self.schema.fields):
            return f"{got} fields, expected {len(self.schema.fields)}"
        wanted = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in self.schema.fields)
        return f"a field does not fit its type ({wanted})"
