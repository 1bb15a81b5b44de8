"""Rows as CSV (RFC 4180), made column by column with Arrow's kernels.

Values look as in `json_text`, without the quotes of JSON; arrays, structs and maps are JSON. A null is the
text that was chosen for it, never quoted; a string that is the same is quoted, so they can be told apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from signoff.json_text import TEXT, json_values

Quoting = Literal["needed", "all"]


@dataclass(frozen=True, slots=True)
class CsvShape:
    """How the text looks."""

    header: bool = True
    delimiter: str = ","
    null_value: str = ""
    quote: Quoting = "needed"


def csv_header(names: list[str], shape: CsvShape) -> bytes:
    """The line with the names."""
    fields = _fields(pa.array(names, TEXT), shape)
    return (shape.delimiter.join(fields.to_pylist()) + "\n").encode()


def csv_lines(rows: pa.RecordBatch, shape: CsvShape) -> pa.LargeStringArray:
    """One line per row, each with its newline."""
    columns = [_fields(_text(column), shape) for column in rows.columns]
    joined = pc.binary_join_element_wise(*columns, pa.scalar(shape.delimiter, TEXT))
    return pc.binary_join_element_wise(joined, pa.scalar("\n", TEXT), pa.scalar("", TEXT))


def _text(column: pa.Array) -> pa.Array:
    kind = column.type
    if pt.is_null(kind):
        return pa.nulls(len(column), TEXT)
    if pt.is_string(kind) or pt.is_large_string(kind):
        return column.cast(TEXT)
    text = json_values(column)
    return text if pt.is_nested(kind) else pc.utf8_trim(text, '"')


def _fields(text: pa.Array, shape: CsvShape) -> pa.Array:
    """Each value as a field, quoted where it must be; nulls are their text."""
    doubled = pc.replace_substring(text, '"', '""')
    quote, nothing = pa.scalar('"', TEXT), pa.scalar("", TEXT)
    quoted = pc.binary_join_element_wise(quote, doubled, quote, nothing)
    if shape.quote == "needed":
        needs = pc.equal(text, pa.scalar(shape.null_value, TEXT))
        for sign in (shape.delimiter, '"', "\n", "\r"):
            needs = pc.or_(needs, pc.match_substring(text, sign))
        quoted = pc.if_else(needs, quoted, text)
    return quoted.fill_null(shape.null_value)
