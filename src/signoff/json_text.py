"""Rows as JSON text, made column by column with Arrow's kernels: no Python object per value.

What a value looks like, in every sink that writes JSON:

    BOOLEAN, integers, DECIMAL    true, 17, 12.50 (all digits kept)
    FLOAT, DOUBLE                 6.0, 1e-7; "NaN", "Infinity", "-Infinity" as strings
    STRING                        as it is; only what JSON demands is escaped
    BINARY                        base64
    DATE, TIMESTAMP               "2021-05-01", "2021-05-01T10:00:00Z" (UTC, fraction only if there is one)
    TIMESTAMP_NTZ, TIME           "2021-05-01T10:00:00", "10:00:00.000000"
    INTERVAL DAY TO SECOND        seconds, ISO 8601: "PT93784.5S"
    ARRAY, STRUCT, MAP            array, object, object (keys that are not strings become strings)
    NULL                          null; a row always has all its fields

Each column becomes a list of *pieces*: constant strings, and arrays of text without nulls. One
kernel joins the pieces of a row, and the data buffer of its result is the file's content. Rows as
dicts through orjson were tried and are six times slower. All kernels release the interpreter lock.
"""

from __future__ import annotations

import binascii
import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from signoff.errors import PermanentError

TEXT = pa.large_string()
"""64-bit offsets: a batch may be larger than 2 GiB as text."""

Pieces = list[str | pa.Array]


def json_lines(rows: pa.RecordBatch) -> pa.LargeStringArray:
    """One JSON object per row, each with its newline.

    Raises PermanentError for a column whose type has no JSON form. Text must be valid UTF-8 and
    times within the years 1 to 9999: `refusal.unfit` names the rows that are not.
    """
    pieces = _object_pieces(rows.schema.names, rows.columns)
    pieces.append("\n")
    return _join(pieces, rows.num_rows)


def json_objects(rows: pa.RecordBatch) -> pa.LargeStringArray:
    """One JSON object per row, as `json_lines` writes them, without the newline."""
    return _join(_object_pieces(rows.schema.names, rows.columns), rows.num_rows)


def buffer_of(lines: pa.LargeStringArray) -> pa.Buffer:
    """The text of all lines, one after the other, without a copy."""
    if len(lines) == 0:
        return pa.py_buffer(b"")
    offsets = _offsets(lines)
    return lines.buffers()[2].slice(int(offsets[0]), int(offsets[-1] - offsets[0]))


def json_values(column: pa.Array) -> pa.LargeStringArray:
    """Each value as JSON text; null stays null. For columns kept as JSON in a database."""
    text = _join(_pieces(column, "value"), len(column))
    return text if column.null_count == 0 else pc.if_else(column.is_valid(), text, pa.scalar(None, TEXT))


def iso_time(column: pa.Array) -> pa.LargeStringArray:
    """Timestamps as ISO 8601 text; null stays null."""
    kind = column.type
    naive = column.view(pa.timestamp(kind.unit))
    zone = "Z" if kind.tz else ""
    whole = naive.cast(pa.timestamp("s"), safe=False)
    fraction = pc.not_equal(naive, whole.cast(naive.type))
    some, every = pc.any(fraction).as_py(), pc.all(fraction).as_py()
    if not some:
        return _with_t(whole, zone)
    if every:
        return _with_t(naive, zone)
    return pc.if_else(fraction, _with_t(naive, zone), _with_t(whole, zone))


def _object_pieces(names: list[str], columns: list[pa.Array]) -> Pieces:
    if not names:
        return ["{}"]
    pieces: Pieces = []
    for place, (name, column) in enumerate(zip(names, columns, strict=True)):
        pieces.append(("," if place else "{") + json.dumps(name, ensure_ascii=False) + ":")
        pieces.extend(_pieces(column, name))
    pieces.append("}")
    return pieces


def _pieces(column: pa.Array, name: str) -> Pieces:
    """What to join for the values of a column; nulls are the text `null`."""
    kind = column.type
    if column.null_count == len(column):
        return ["null"]
    if pt.is_boolean(kind) or pt.is_integer(kind) or pt.is_decimal(kind):
        return [column.cast(TEXT).fill_null("null")]
    if pt.is_floating(kind):
        return [_float_text(column)]
    if pt.is_struct(kind):
        names = [kind.field(place).name for place in range(kind.num_fields)]
        return _nullable(_object_pieces(names, column.flatten()), column)
    if pt.is_map(kind):
        return _nullable(_map_pieces(column, name), column)
    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        return _nullable(_list_pieces(column, name), column)
    return _nullable(['"', _quotable_text(column, name), '"'], column)


def _nullable(pieces: Pieces, column: pa.Array) -> Pieces:
    if column.null_count == 0:
        return pieces
    text = _join(pieces, len(column))
    return [pc.if_else(column.is_valid(), text, pa.scalar("null", TEXT))]


def _quotable_text(column: pa.Array, name: str) -> pa.LargeStringArray:
    """Text of the types that are strings in JSON, escaped where needed."""
    kind = column.type
    if pt.is_string(kind) or pt.is_large_string(kind):
        return _escape(column.cast(TEXT))
    if pt.is_timestamp(kind):
        return iso_time(column)
    if pt.is_date(kind) or pt.is_time(kind):
        return column.cast(TEXT)
    if pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind):
        encode = binascii.b2a_base64
        values = (None if v is None else encode(v, newline=False) for v in column.to_pylist())
        return pa.array(values, pa.large_binary()).view(TEXT)
    if pt.is_duration(kind):
        values = column.cast(pa.duration("us")).view(pa.int64()).to_pylist()
        return pa.array([None if v is None else _iso_duration(v) for v in values], TEXT)
    raise PermanentError(
        f'column "{name}" has type {kind}, which has no JSON form; cast it to STRING before this sink'
    )


def _iso_duration(micros: int) -> str:
    seconds, fraction = divmod(abs(micros), 1_000_000)
    digits = f"{seconds}.{fraction:06d}".rstrip("0").rstrip(".")
    return f"PT{'-' if micros < 0 else ''}{digits}S"


def _float_text(column: pa.Array) -> pa.LargeStringArray:
    """Shortest text that reads back as the same number, and as a float: 6.0, not 6."""
    text = column.cast(TEXT)
    integral = pc.equal(column, pc.trunc(column))
    if pc.any(integral).as_py():
        bare = pc.and_not(integral, pc.match_substring(text, "e"))
        suffix = pc.if_else(bare, pa.scalar(".0", TEXT), pa.scalar("", TEXT))
        text = pc.binary_join_element_wise(text, suffix, pa.scalar("", TEXT))
    finite = pc.is_finite(column)
    if not pc.all(finite).as_py():
        names = pc.if_else(
            pc.is_nan(column),
            pa.scalar('"NaN"', TEXT),
            pc.if_else(pc.greater(column, 0), pa.scalar('"Infinity"', TEXT), pa.scalar('"-Infinity"', TEXT)),
        )
        text = pc.if_else(finite, text, names)
    return text.fill_null("null")


def _list_pieces(column: pa.Array, name: str) -> Pieces:
    if pt.is_fixed_size_list(column.type):
        column = column.cast(pa.list_(column.type.value_type))
    offsets = column.offsets
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    values = column.values.slice(first, last - first)
    return ["[", _join_lists(_join(_pieces(values, name), len(values)), offsets, first), "]"]


def _map_pieces(column: pa.Array, name: str) -> Pieces:
    offsets = column.offsets
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    keys, items = (part.slice(first, last - first) for part in (column.keys, column.items))
    entries = _join([*_key_pieces(keys, name), ":", *_pieces(items, name)], len(keys))
    return ["{", _join_lists(entries, offsets, first), "}"]


def _key_pieces(keys: pa.Array, name: str) -> Pieces:
    pieces = _pieces(keys, name)
    if pieces and pieces[0] == '"':
        return pieces
    text = _join(pieces, len(keys))
    if pt.is_nested(keys.type):
        return ['"', _escape(text), '"']
    return ['"', pc.utf8_trim(text, '"'), '"']  # "NaN" is quoted already


def _join_lists(values: pa.LargeStringArray, offsets: pa.Array, first: int) -> pa.LargeStringArray:
    """Join the values of each list with commas. Lists that are null are joined too; the caller masks them."""
    places = pc.subtract(offsets.cast(pa.int64()), first)
    lists = pa.LargeListArray.from_arrays(places, values)
    return pc.binary_join(lists, pa.scalar(",", TEXT))


def _join(pieces: Pieces, length: int) -> pa.LargeStringArray:
    """Concatenate the pieces of each row."""
    merged: Pieces = []
    for piece in pieces:
        if isinstance(piece, str) and merged and isinstance(merged[-1], str):
            merged[-1] += piece
        else:
            merged.append(piece)
    if not any(isinstance(piece, pa.Array) for piece in merged):
        return pa.repeat(pa.scalar("".join(str(piece) for piece in merged), TEXT), length)
    arguments = [pa.scalar(piece, TEXT) if isinstance(piece, str) else piece for piece in merged]
    return pc.binary_join_element_wise(*arguments, pa.scalar("", TEXT))


def _escape(text: pa.LargeStringArray) -> pa.LargeStringArray:
    """Escape what JSON demands, in one pass per character that occurs at all: mostly none does."""
    offsets = _offsets(text)
    data = text.buffers()[2]
    if data is None or len(offsets) == 0:
        return text
    content = np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]
    if (content == 0x5C).any():
        text = pc.replace_substring(text, "\\", "\\\\")
    if (content == 0x22).any():
        text = pc.replace_substring(text, '"', '\\"')
    for code in np.unique(content[content < 0x20]).tolist():
        text = pc.replace_substring(text, chr(code), json.dumps(chr(code))[1:-1])
    return text


def _offsets(text: pa.LargeStringArray) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    buffer = text.buffers()[1]
    if buffer is None or len(text) == 0:
        return np.zeros(0, np.int64)
    return np.frombuffer(buffer, np.int64)[text.offset : text.offset + len(text) + 1]


def _with_t(times: pa.Array, zone: str) -> pa.LargeStringArray:
    """`2021-05-01 10:00:00` of Arrow's cast, as `2021-05-01T10:00:00Z`; all years have four digits."""
    text = pc.binary_replace_slice(times.cast(TEXT).view(pa.large_binary()), 10, 11, b"T").view(TEXT)
    if not zone:
        return text
    return pc.binary_join_element_wise(text, pa.scalar(zone, TEXT), pa.scalar("", TEXT))
