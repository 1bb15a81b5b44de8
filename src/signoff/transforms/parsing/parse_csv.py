"""`parse_csv`: one line of separated values into typed columns.

Spark's parser finds the fields, as texts; these are cast one by one (`typed_texts`), so that a value that
does not fit is named. That parser reads the first record of a text and says nothing of further ones, so a
text that may hold several is found before (`one_record`).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StringType, StructField, StructType

from signoff.transforms.contract import Step, Transform
from signoff.transforms.frame import View
from signoff.transforms.parsing.parse_json import text_column
from signoff.transforms.parsing.typed_texts import WHOLE_ROW, Describe, Rules, typed_view
from signoff.transforms.try_expressions import tried

_CORRUPT = "__corrupt"
_BREAKS = "\r\n"
_BREAK = "[\r\n]"
_NO_SEPARATORS = '"\\\r\n\0'


class ParseCsvConfig(Transform):
    summary: ClassVar[str] = "Parse a line of separated values into typed columns."
    example: ClassVar[str] = """\
schema: id BIGINT NOT NULL, day DATE, price DECIMAL(10,2)
separator: ";"
null_values: ["", "-"]
date_format: dd.MM.yyyy
"""
    type: Literal["parse_csv"] = "parse_csv"
    schema_: str = Field(alias="schema")
    """Columns and types in the order of the fields, as in Spark SQL. A row with a value that does not fit is
    a dead letter that names column, value and type; so is a null in a column that is NOT NULL."""
    column: str = "payload"
    """Column that holds the line: one, with or without a line break at its end. Line breaks within quotes are
    part of a value; an event of several lines is an error."""
    separator: str = Field(default=",", min_length=1, max_length=1)
    """Character between two fields; not a quote, a backslash, a line break or NUL."""
    quote: Annotated[str, Field(min_length=1, max_length=1)] | None = '"'
    """What encloses a field that holds separators; null: nothing does."""
    escape: Annotated[str, Field(min_length=1, max_length=1)] | None = None
    """What stands before a quote inside a quoted field; null: it is written twice."""
    null_values: tuple[str, ...] = ("",)
    """Texts that mean null."""
    timestamp_format: str | None = None
    """Spark datetime pattern of TIMESTAMP fields; by default ISO 8601."""
    date_format: str | None = None
    """Spark datetime pattern of DATE fields; by default ISO 8601."""
    keep: tuple[str, ...] = ()
    """Columns of the input that go on besides the parsed ones."""

    @field_validator("separator")
    @classmethod
    def _separates(cls, value: str) -> str:
        if value in _NO_SEPARATORS:
            raise ValueError("a quote, a backslash, a line break or NUL cannot separate fields")
        return value

    @model_validator(mode="after")
    def _different(self) -> Self:
        if self.separator in (self.quote, self.escape):
            raise ValueError("separator, quote and escape must be different characters")
        return self

    def compile(self, step: Step, view: View) -> Mapping[str | None, View]:
        frame = view.frame
        rules = Rules.of(self.schema_, self.null_values, self.timestamp_format, self.date_format)
        text = F.col(text_column(self.column, view))
        line = F.rtrim(text, F.lit(_BREAKS))
        several = line.rlike(_BREAK) & ~line.rlike(one_record(self.separator, self.quote, self.escape))
        options = {
            "columnNameOfCorruptRecord": _CORRUPT,
            "mode": "PERMISSIVE",
            "sep": self.separator,
            "quote": self.quote or "",
            "escape": self.escape or self.quote or "\\",
        }
        strings = [StructField(f"f{place}", StringType()) for place in range(len(rules.schema))]
        ddl = StructType([*strings, StructField(_CORRUPT, StringType())]).toDDL()
        # The parser raises for a line of more than 20,480 fields, whatever its mode.
        parsed = tried({"value": F.from_csv(line, ddl, options)})["v0"]
        value = frame.compute(view, {"value": F.when(~several, parsed)})["value"]
        bad = F.col(value).isNull() | F.col(value)[_CORRUPT].isNotNull() | (F.trim(line) == F.lit(""))
        # The parser itself makes an empty field null.
        texts = {
            name: F.coalesce(F.col(value)[f"f{place}"], F.lit(""))
            for place, name in enumerate(rules.schema.names)
        }
        made = typed_view(
            step.name,
            view,
            texts,
            rules,
            self.on_error,
            wrong=F.when(bad, F.concat(F.lit(WHOLE_ROW), F.coalesce(text, F.lit("")))),
            describe=_Describe(rules, self.separator, self.quote, self.escape),
            keep=self.keep,
        )
        return {None: made}


def one_record(separator: str, quote: str | None, escape: str | None) -> str:
    """A pattern, the same for Java and Python, of texts that are one record for certain, with line breaks
    only in quoted fields. Possessive, so that it takes time in proportion to the text and no stack.

    What Spark's parser would mend as it thinks best (a quote that is not closed, or is followed by more) does
    not match.
    """
    escape = escape or quote
    if quote is None or escape is None or max(separator + quote + escape) > "\uffff":
        return r"(?!)"
    s, q, e = (f"\\u{ord(sign):04x}" for sign in (separator, quote, escape))
    inside = rf"[^{q}]++|{q}{q}" if q == e else rf"[^{q}{e}]++|{e}{q}|{e}(?!{q}|{e})"
    field = rf"(?:{q}(?:{inside})*+{q}|[^{s}{q}\r\n][^{s}\r\n]*+|)(?={s}|(?![\s\S]))"
    return rf"\A{field}(?:{s}{field})*+(?![\s\S])"


class _Describe(Describe):
    def __init__(
        self, rules: Rules, separator: str, quote: str | None = '"', escape: str | None = None
    ) -> None:
        super().__init__(rules)
        self.separator, self.quote, self.escape = separator, quote, escape

    def line(self, text: str) -> str:
        if not text.strip():
            return "the line is empty"
        line = text.rstrip(_BREAKS)
        if re.search(_BREAK, line) and not re.search(
            one_record(self.separator, self.quote, self.escape), line
        ):
            return "several lines; an event is one line, with line breaks only within quotes"
        try:
            got = len(next(self._fields(text), []))
        except csv.Error:  # a line break in it, or a field of more than 128 KiB
            return "it is not one line of separated values"
        if got != len(self.rules.schema):
            return f"{got} fields, expected {len(self.rules.schema)}"
        return "it is not one line of separated values"

    def _fields(self, text: str) -> Iterator[list[str]]:
        return csv.reader(
            [text],
            delimiter=self.separator,
            quotechar=self.quote,
            escapechar=None if self.escape == self.quote else self.escape,
            quoting=csv.QUOTE_MINIMAL if self.quote else csv.QUOTE_NONE,
        )
