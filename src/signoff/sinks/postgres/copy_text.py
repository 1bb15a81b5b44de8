"""Rows as the text that COPY reads, one column each, whatever type the table casts them to."""

from __future__ import annotations

import binascii

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pv
import pyarrow.types as pt

from signoff.errors import PermanentError
from signoff.json_text import TEXT, iso_time, json_values
from signoff.sinks.contract import Refusal
from signoff.sinks.postgres.statements import PLACE, is_binary
from signoff.sinks.refusal import Fit, refused


def as_csv(rows: pa.RecordBatch) -> pa.Buffer:
    """All rows as CSV with their places; null is nothing, an empty string is two quotes."""
    columns = [pa.array(range(rows.num_rows), pa.int32()), *map(_as_text, rows.columns)]
    table = pa.table(columns, names=[PLACE, *rows.schema.names])
    out = pa.BufferOutputStream()
    pv.write_csv(table, out, pv.WriteOptions(include_header=False, quoting_style="all_valid"))
    return out.getvalue()


def _as_text(column: pa.Array) -> pa.Array:
    """A column in a form that PostgreSQL reads as each of the types it may be cast to."""
    kind = column.type
    if pt.is_timestamp(kind):
        return iso_time(column)
    if is_binary(kind):
        values = (None if v is None else b"\\x" + binascii.hexlify(v) for v in column.to_pylist())
        return pa.array(values, pa.large_binary()).view(TEXT)
    if pt.is_nested(kind):
        return json_values(column)
    if pt.is_duration(kind):
        return pc.utf8_trim(json_values(column), '"')
    if pt.is_null(kind):
        return pa.nulls(len(column), TEXT)
    try:
        return column.cast(TEXT)
    except pa.ArrowNotImplementedError as error:
        raise PermanentError(
            f"PostgreSQL has no type for {kind}; cast it to STRING before this sink"
        ) from error


def without_nul(sorted_out: Fit) -> Fit:
    """Refuse rows with text PostgreSQL cannot hold: it has no character U+0000."""
    refusals: dict[int, Refusal] = {}
    for name, column in zip(sorted_out.rows.schema.names, sorted_out.rows.columns, strict=True):
        if not (pt.is_string(column.type) or pt.is_large_string(column.type)):
            continue
        hits = pc.match_substring(column, "\0").fill_null(False)
        if hits.true_count:
            reason = f'column "{name}": PostgreSQL text cannot hold the character U+0000'
            for index in pc.indices_nonzero(hits).to_pylist():
                refusals.setdefault(index, refused(index, reason))
    if not refusals:
        return sorted_out
    keep = [index for index in range(sorted_out.rows.num_rows) if index not in refusals]
    return Fit(
        sorted_out.rows.take(pa.array(keep, pa.int64())),
        sorted_out.places[keep],
        sorted_out.original(refusals.values()),
    )
