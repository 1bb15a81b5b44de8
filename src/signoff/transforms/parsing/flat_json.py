"""Flat JSON objects in bulk: most of what `parse_json` is given, at a fourth of what Spark's parser costs.

Runs on executors while the log is read. What comes out here is exactly what Spark's `from_json` would give;
a text of which that is not certain (nested, malformed, of other types, a time in an unusual form) is left to
it. So nothing depends on which of the two has parsed a text, and no error is found here.

How texts cannot run into one another although they are parsed as one: each begins with a brace and has one
closing brace, its last character; they are put together with line ends, which no JSON string may hold. So
whatever is open at the end of a text meets the opening brace of the next one where none is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    BooleanType,
    ByteType,
    DataType,
    DoubleType,
    FloatType,
    FractionalType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from signoff.transforms.parsing.fixed_times import FixedTimes, Flags
from signoff.transforms.preparsed_names import EARLY

_KINDS = (BooleanType, ByteType, ShortType, IntegerType, LongType, FloatType, DoubleType, TimestampType)
_ROW = re.compile(r" in row (\d+)$")
_LONGEST, _SHORT = 50_000, 1_000
"""Spark's parser has limits: names of 50,000 characters, numbers of 1,000, arrays 1,000 deep."""
_MANY_DIGITS, _MANY_ARRAYS = "[0-9]{100}", 500
"""Part of any number that is too long, and fewer brackets than it takes to be too deep."""
_NO_NUMBER = r"NaN|Inf(inity)?\s*[,}\]]"
"""Not all parsers take all of these for a number."""
_TOO_LARGE: dict[type[DataType], str] = {
    ByteType: "[2-9][0-9]{2}|1[3-9][0-9]|[0-9]{4}",
    ShortType: "[4-9][0-9]{4}|3[3-9][0-9]{3}|[0-9]{6}",
    IntegerType: "[3-9][0-9]{9}|2[2-9][0-9]{8}|[0-9]{11}",
    LongType: "[0-9]{19}",
}
"""Integers that are beyond their type, nearly all of them."""
_FEW = 64
"""Of so few texts one of which does not fit its type it is not found out which."""
_TRIED = 256
"""If less than half of so many fit, the others are not tried."""
_AT_ONCE = 2_000
"""So many are parsed at once: what they are made into fits into the processor's caches."""
_SHARE = 50
"""If more than one in so many of them does not fit, the others are not tried."""
_RARE = 100
"""Where the quotes of all but one in so many are of the same number, the others are likely not to fit: a text
in the place of a number, say. One that does not fit costs as much as a thousand that are left out."""
_OPEN, _CLOSE, _SPACE, _QUOTE = b'{} "'


class FlatJson:
    """Parses the texts that are flat objects of some columns."""

    def __init__(self, schema: StructType, times: FixedTimes) -> None:
        self.schema = schema
        self._times = times
        self._types = [to_arrow_type(field.dataType, timezone="UTC") for field in schema]
        self._read_as = {field.name: _read_as(field.dataType) for field in schema}
        self._no_integer = "|".join(_no_integer(kind, schema) for kind in _TOO_LARGE)
        """In a text in which an integer may not be one."""
        columns = pa.schema(self._read_as.items())
        self._options = pj.ParseOptions(explicit_schema=columns, unexpected_field_behavior="ignore")

    def __reduce__(self) -> tuple[type[FlatJson], tuple[StructType, FixedTimes]]:
        return FlatJson, (self.schema, self._times)

    @classmethod
    def of(cls, schema: StructType, timestamp_format: str | None) -> FlatJson | None:
        """None if a column is of a type, or the times are in a form, that only Spark reads."""
        if not all(_is_simple(field.dataType) for field in schema):
            return None
        times = FixedTimes.of(timestamp_format)
        if times is None and any(isinstance(field.dataType, TimestampType) for field in schema):
            return None
        return cls(schema, times or FixedTimes(()))

    def parse(self, texts: pa.StringArray) -> tuple[pa.BooleanArray, list[pa.Array]]:
        """Of each text whether it was parsed, and the columns, whose values count only where it was."""
        if texts.null_count == len(texts):
            return self._nothing(len(texts))
        if len(texts) > 2 * _TRIED:
            first, _ = self._parse(texts.slice(0, _TRIED))
            if first.sum() < _TRIED // 2:
                return self._nothing(len(texts))
        parsed, columns = self._parse(texts)
        return pa.array(parsed), columns

    def _nothing(self, number: int) -> tuple[pa.BooleanArray, list[pa.Array]]:
        return pa.repeat(pa.scalar(False), number), [pa.nulls(number, kind) for kind in self._types]

    def _parse(self, texts: pa.StringArray) -> tuple[Flags, list[pa.Array]]:
        lines = _Lines(texts)
        parts = range(0, len(lines), _AT_ONCE)
        tables = [self._table(lines, first, min(first + _AT_ONCE, len(lines))) for first in parts]
        table = pa.concat_tables(tables)
        fit = lines.good
        columns: list[pa.Array] = []
        for field, column in zip(self.schema, table.columns, strict=True):
            values = column.combine_chunks()
            if isinstance(field.dataType, TimestampType):
                values, certain = self._times.read(values)
                fit = fit & certain
            elif isinstance(field.dataType, FractionalType):
                numbers = values.to_numpy(zero_copy_only=False)
                fit = fit & ~(np.signbit(numbers) & (numbers == 0))  # Spark has a -0.0, but no -0
            columns.append(values)
        return fit, columns

    def _table(self, lines: _Lines, start: int, end: int) -> pa.Table:
        """Some lines as a table, as many rows as lines; what cannot be parsed is left out of them."""
        first, screened = start, False
        tries = (end - start) // _SHARE + 3
        while tries and lines.good[start:end].any():
            try:
                table = self._read(lines, first, end)
            except pa.ArrowInvalid as error:
                tries -= 1
                if found := _ROW.search(str(error)):
                    first += int(found[1]) + 1
                    lines.leave_out(first - 1, first)
                    first = first if first < end else start
                    continue
                # All can be parsed, but a value does not fit its type; it is not said which.
                first = start
                if screened:
                    self._leave_out_unfit(lines, start, end)
                for place in np.flatnonzero(lines.match(self._no_integer, start, end)).tolist():
                    lines.leave_out(start + place, start + place + 1)
                screened = True
            else:
                if first == start:
                    return table
                first = start
        lines.leave_out(start, end)
        return pa.table({name: pa.nulls(end - start, kind) for name, kind in self._read_as.items()})

    def _leave_out_unfit(self, lines: _Lines, start: int, end: int) -> None:
        """Leave out a few lines around each that has a value that does not fit its type."""
        try:
            self._read(lines, start, end)
        except pa.ArrowInvalid:
            if end - start <= _FEW:
                lines.leave_out(start, end)
                return
            half = (start + end) // 2
            self._leave_out_unfit(lines, start, half)
            self._leave_out_unfit(lines, half, end)

    def _read(self, lines: _Lines, first: int, end: int) -> pa.Table:
        """Raises ArrowInvalid."""
        data = lines.between(first, end)
        # In one block: between blocks the parser would look for line ends, and texts may have some.
        options = pj.ReadOptions(use_threads=False, block_size=data.size + 1)
        try:
            table = pj.read_json(pa.BufferReader(data), read_options=options, parse_options=self._options)
        except pa.ArrowException as error:
            raise pa.ArrowInvalid(str(error)) from None
        if table.num_rows != end - first:
            raise pa.ArrowInvalid("it has another number of rows")
        return table


class _Lines:
    """Texts with line ends between them, and which of them may be flat objects. Those that are not, or are
    left out later, become empty objects, so that each text keeps its place."""

    def __init__(self, texts: pa.StringArray) -> None:
        lengths = pc.binary_length(texts)
        if texts.null_count or (len(texts) and pc.min(lengths).as_py() < 2):
            texts = pc.if_else(pc.greater_equal(pc.fill_null(lengths, 0), 2), texts, pa.scalar("0 "))
        self._texts = texts
        self._number = len(texts)
        whole = pa.ListArray.from_arrays(pa.array([0, self._number], pa.int32()), texts)
        self._bytes: bytes | bytearray = pc.binary_join(whole, "\n")[0].as_buffer().to_pybytes()
        _, offsets, _ = texts.buffers()
        bounds = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + self._number + 1]
        places = np.arange(self._number, dtype=np.int64) - bounds[0]
        self._begin, self._end = bounds[:-1] + places, bounds[1:] + places
        self.good = self._plain()
        if not self.good.all():
            self._blank(np.flatnonzero(~self.good).tolist())

    def __len__(self) -> int:
        return self._number

    def between(self, first: int, end: int) -> pa.Buffer:
        return pa.py_buffer(self._bytes)[int(self._begin[first]) : int(self._end[end - 1])]

    def leave_out(self, start: int, end: int) -> None:
        self.good[start:end] = False
        self._blank(range(start, end))

    def match(self, pattern: str, first: int = 0, end: int | None = None) -> Flags:
        some = self._texts.slice(first, None if end is None else end - first)
        found: Flags = np.asarray(pc.match_substring_regex(some, pattern))
        return found

    def _blank(self, places: Iterable[int]) -> None:
        if isinstance(self._bytes, bytes):
            self._bytes = bytearray(self._bytes)
        signs = np.frombuffer(self._bytes, np.uint8)
        for place in places:
            begin, end = self._begin[place], self._end[place]
            signs[begin:end] = _SPACE
            signs[begin], signs[begin + 1] = _OPEN, _CLOSE

    def _plain(self) -> Flags:
        """Of each text whether it may be a flat object that any parser reads in the same way."""
        signs, begin, end = np.frombuffer(self._bytes, np.uint8), self._begin, self._end
        # Counted in 16 bits, of which texts that are too long may need more.
        quotes, closing = (
            np.add.reduceat((signs == sign).view(np.uint8), begin, dtype=np.uint16)
            for sign in (_QUOTE, _CLOSE)
        )
        plain: Flags = (signs[begin] == _OPEN) & (signs[end - 1] == _CLOSE) & (closing == 1)
        usual = np.bincount(quotes[plain]).argmax() if plain.any() else 0
        unusual = plain & (quotes != usual)
        if unusual.sum() * _RARE < self._number:
            plain &= ~unusual
        longest = int((end - begin).max())
        if longest > _LONGEST:
            plain &= end - begin <= _LONGEST
        if longest > _SHORT:
            plain &= ~self.match(_MANY_DIGITS)
            plain &= np.asarray(pc.less(pc.count_substring(self._texts, "["), _MANY_ARRAYS))
        if _holds(signs, b"NaN") or _holds(signs, b"Inf"):
            plain &= ~self.match(_NO_NUMBER)
        return plain


def _no_integer(kind: type[DataType], schema: StructType) -> str:
    """A pattern for texts in which a field of this type may be no such integer."""
    fields = [f.name for f in schema if type(f.dataType) is kind and re.fullmatch(r"\w+", f.name, re.ASCII)]
    # Without such a field nothing is to match: no text has this byte.
    return (
        rf'"(?:{"|".join(fields)})"\s*:\s*-?(?:[0-9]*[^-0-9,}}\s]|{_TOO_LARGE[kind]})' if fields else r"\x00"
    )


def _is_simple(kind: DataType) -> bool:
    return isinstance(kind, _KINDS) or kind == StringType()


def _read_as(kind: DataType) -> pa.DataType:
    return pa.string() if isinstance(kind, TimestampType) else to_arrow_type(kind, timezone="UTC")


def _holds(signs: npt.NDArray[np.uint8], word: bytes) -> bool:
    found = np.ones(len(signs) - len(word) + 1, bool)
    for place, sign in enumerate(word):
        found &= signs[place : place + len(found)] == sign
    return bool(found.any())


def early_columns(step: str, schema: StructType) -> list[str]:
    """The columns in which a step finds whether its text was parsed already, and the values."""
    name = EARLY + step.replace(".", "~")  # in a column's name a point has a meaning
    return [name, *(f"{name}~~{place}" for place in range(len(schema)))]
