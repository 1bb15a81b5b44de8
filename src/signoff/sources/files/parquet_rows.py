"""Parquet files: one event a row, as a JSON object; the position is the number of rows read.

What it keeps: a value that JSON or Python cannot hold (a date after the year 9999, text that is no UTF-8) is
an error of its row, named with its column. Row groups that cannot be decoded are one error each. Whatever
the bytes are, reading comes to an end: hostile files make pyarrow raise almost anything.

How large rows are is known when they are read: a file of a few hundred bytes can hold gigabytes, a long text
that is in it once and in every row. So the first step is one row, and each one is as many as the rows before
it allow, at most twice as many.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from signoff.pipeline.secrets import excerpt, redact
from signoff.sources.events import KEPT_BYTES, Piece, piece, too_large
from signoff.sources.files.content import ContentFile
from signoff.sources.files.reader import CHUNK_BYTES, ROWS, Reader, Shape

OPTIONS = orjson.OPT_UTC_Z | orjson.OPT_NON_STR_KEYS
NANOSECONDS = 1_000_000_000


class ParquetReader(Reader):
    """Reads row group by row group, a bounded number of rows at a time."""

    def __init__(self, content: ContentFile, shape: Shape, position: int) -> None:
        self._max_event_bytes = shape.max_event_bytes
        self._file = open(content.duplicate(), "rb")  # noqa: SIM115  (closed by `close`)
        self.position = position
        self._steps = self._read_all()
        self._left: pa.RecordBatch | None = None
        self._rows = 0
        """In all, once that is known."""

    def read(self, max_events: int) -> Piece | None:
        batch = self._left
        if batch is None:
            step = next(self._steps, None)
            if not isinstance(step, pa.RecordBatch):
                return step
            batch = step
        self._left = batch.slice(max_events) if len(batch) > max_events else None
        batch = batch.slice(0, max_events)
        start, self.position = self.position, self.position + len(batch)
        payloads, errors = _rows(batch)
        for index, payload in enumerate(payloads):
            if len(payload) > self._max_event_bytes:
                errors.setdefault(index, too_large(len(payload), self._max_event_bytes, "row"))
                payloads[index] = payload[: min(KEPT_BYTES, self._max_event_bytes)]
        return piece(payloads, range(start + 1, self.position + 1), errors)

    def _read_all(self) -> Iterator[pa.RecordBatch | Piece]:
        import pyarrow.parquet as pq  # here, because few pipelines need it and it is slow to load

        try:
            file = pq.ParquetFile(self._file, pre_buffer=False)
            groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
            counts = [int(group.num_rows) for group in groups]
            self._rows = sum(counts)
            names = file.schema_arrow.names
            if any(count < 0 for count in counts):
                raise pa.ArrowInvalid("a row group has a negative number of rows")
        except Exception as error:  # noqa: BLE001  (a hostile file raises almost anything)
            yield self._broken(f"file is not readable as Parquet: {_brief(error)}", self.position + 1)
            return
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            yield self._broken(f"file has two columns {twice[0]!r}", self.position + 1)
            return
        end, step = 0, 1
        for number, count in enumerate(counts):
            begin, end = end, end + count
            if self.position >= end:
                continue
            try:
                skip = self.position - begin
                for batch in file.iter_batches(step, row_groups=[number]):
                    step = _rows_of_a_step(batch.nbytes, len(batch))
                    file.reader.set_batch_size(step)  # holds from the next batch on
                    if skip < len(batch):
                        yield batch.slice(skip)
                    skip = max(0, skip - len(batch))
                if self.position < end:
                    raise pa.ArrowInvalid(f"it ends {end - self.position} rows early")
            except Exception as error:  # noqa: BLE001
                missing = f"rows {self.position} to {end - 1} cannot be read"
                yield self._broken(f"{missing} (row group {number}): {_brief(error)}", end)

    def _broken(self, reason: str, position: int) -> Piece:
        self.damaged, self.position = reason, position
        return piece([b""], [position], {0: reason})

    def bytes_read(self, content: ContentFile, position: int) -> int:
        return content.opened.size * position // self._rows if self._rows > 0 else 0

    def close(self) -> None:
        self._file.close()


def _rows_of_a_step(size: int, rows: int) -> int:
    """How many rows to read after so many of this size."""
    return max(1, min(ROWS, 2 * rows, CHUNK_BYTES * rows // max(1, size)))


def _rows(batch: pa.RecordBatch) -> tuple[list[bytes], dict[int, str]]:
    """Each row as JSON, or with the reason why it is none."""
    try:
        plain = pa.RecordBatch.from_arrays([_plain(column) for column in batch.columns], batch.schema.names)
        return [orjson.dumps(row, _other, OPTIONS) for row in plain.to_pylist()], {}
    except Exception:  # noqa: BLE001
        return _row_by_row(batch)  # the row at fault is found, and the others are read


def _row_by_row(batch: pa.RecordBatch) -> tuple[list[bytes], dict[int, str]]:
    payloads: list[bytes] = []
    errors: dict[int, str] = {}
    for index in range(len(batch)):
        row: dict[str, Any] = {}
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            try:
                row[name] = _value(column[index])
                orjson.dumps(row[name], _other, OPTIONS)
            except Exception as error:  # noqa: BLE001
                errors.setdefault(index, f"column {name!r} ({column.type}): {_brief(error)}")
                row[name] = _as_stored(column[index])
        payloads.append(orjson.dumps(row, _other, OPTIONS))
    return payloads, errors


class _Odd(Exception):
    """Not a value that is converted in bulk."""


def _plain(column: pa.Array) -> pa.Array:
    """The column as it can be converted in bulk; raises _Odd if it holds what needs care."""
    kind = column.type
    if pa.types.is_floating(kind):
        if not pc.all(pc.is_finite(column.cast(pa.float64())), min_count=0).as_py():
            raise _Odd("not a number, or infinite")
    elif pa.types.is_timestamp(kind) and kind.unit == "ns":
        return column.cast(pa.timestamp("us", kind.tz))  # raises if that loses something
    elif pa.types.is_nested(kind) or pa.types.is_dictionary(kind):
        if _holds_care(kind):
            raise _Odd("nested")
    elif pa.types.is_time64(kind) or pa.types.is_duration(kind) or isinstance(kind, pa.BaseExtensionType):
        raise _Odd("a type that is converted value by value")
    return column


def _holds_care(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _holds_care(kind.value_type)
    if pa.types.is_nested(kind):
        return any(_holds_care(kind.field(number).type) for number in range(kind.num_fields))
    return (
        pa.types.is_floating(kind)
        or pa.types.is_temporal(kind)
        or isinstance(kind, pa.BaseExtensionType)
    )  # fmt: skip


def _value(scalar: Any) -> Any:
    """A value as JSON can hold it; raises if there is no way."""
    if not scalar.is_valid:
        return None
    kind = scalar.type
    if pa.types.is_dictionary(kind):
        return _value(scalar.value)
    if pa.types.is_map(kind):
        return [[_value(item["key"]), _value(item["value"])] for item in scalar.values]
    if pa.types.is_struct(kind):
        names = [kind.field(number).name for number in range(kind.num_fields)]
        if len(set(names)) < len(names):
            raise ValueError("two fields of the same name")
        return {name: _value(scalar[number]) for number, name in enumerate(names)}
    if pa.types.is_nested(kind):
        return None if scalar.values is None else [_value(item) for item in scalar.values]
    if pa.types.is_floating(kind):
        return _number(scalar.as_py())
    if pa.types.is_temporal(kind) and getattr(kind, "unit", "") == "ns":
        return _nanoseconds(scalar)
    return scalar.as_py()


def _number(value: float) -> float | str:
    """Spark writes the numbers that JSON does not have as text, and reads them."""
    if math.isfinite(value):
        return float(value)
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _nanoseconds(scalar: Any) -> object:
    """As with microseconds, and three more digits where they are not zero."""
    kind, value = scalar.type, scalar.value
    coarse: pa.DataType = (
        pa.timestamp("us", kind.tz) if pa.types.is_timestamp(kind)
        else pa.time64("us") if pa.types.is_time(kind)
        else pa.duration("us")
    )  # fmt: skip
    moment = pa.scalar(value // 1000, pa.int64()).cast(coarse).as_py()
    if value % 1000 == 0:
        return moment
    whole = orjson.loads(orjson.dumps(moment.replace(microsecond=0), _other, OPTIONS)) if hasattr(
        moment, "replace"
    ) else str(moment)  # fmt: skip
    digits = f"{value % NANOSECONDS:09d}"
    if pa.types.is_duration(kind):
        return f"{whole}" + ("" if "." in whole else ".000000") + f"{value % 1000:03d}"
    place = 19 if pa.types.is_timestamp(kind) else 8
    return f"{whole[:place]}.{digits}{whole[place:]}"


def _as_stored(scalar: Any) -> str:
    """What can be said of a value that cannot be converted."""
    try:
        return str(getattr(scalar, "value", None) or scalar.cast(pa.binary()).as_py())
    except Exception:  # noqa: BLE001
        return "?"


def _other(value: object) -> object:
    """JSON of what orjson does not know."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def _brief(error: BaseException) -> str:
    text = redact(str(error)) or type(error).__name__
    return excerpt(text.split("\n", 1)[0], 300)
