"""What a task tells the driver of a batch: one small table, the same for every task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import pyarrow as pa


class ReportKind(StrEnum):
    """What one line of the result means."""

    SIGNED = "signed"
    """`name` is a sink, `blob` the set of origins it took rows of, `number` the rows."""
    ROWS = "rows"
    """`blob` holds the rows the sink took, where origins alone do not tell them (see `SinkTask.by_row`)."""
    REFUSED = "refused"
    """The sink will never take this row; `text` says why."""
    OWED = "owed"
    """`blob` holds the rows the sink did not take but may later; `number` is the attempts made."""
    HELD = "held"
    """`name` is a sink that was not asked, `blob` the set of origins of the rows it would have got."""
    CAME = "came"
    """`blob` holds the rows that came to a sink, of those it was asked for by name; taken or not. Also of a
    whole batch, if rows of it are noted by name; and with `HELD`, those that have names of their own."""
    PART = "part"
    """`blob` is what the sink's commit needs to know of the part."""
    SURPRISE = "surprise"
    """The sink's code raised what is no `SinkError`: `text` is the traceback, `child` the error's type."""
    ERROR = "error"
    """`name` is a transform (or the source) that failed for this row; `text` says why."""
    WAITS = "waits"
    """`name` is a transform that failed for this row, but may not next time; `text` says why."""
    DROPPED = "dropped"
    """`name` is a transform that dropped this row on purpose; `text` says why."""
    REACHED = "reached"
    """`name` is a transform that this row has come to; said of replayed rows."""
    LEFT_OUT = "left out"
    """`name` is a transform at which this row ended without an error; said of replayed rows."""
    ENDED = "ended"
    """`name` is a transform at which `number` rows of the pass ended; the driver adds it."""


RESULT_SCHEMA = pa.schema(
    [
        pa.field("name", pa.string()),
        pa.field("kind", pa.string()),
        pa.field("sequence", pa.int64()),
        pa.field("child", pa.string()),
        pa.field("text", pa.string()),
        pa.field("number", pa.int64()),
        pa.field("blob", pa.binary()),
    ]
)
RESULT_DDL = (
    "name STRING, kind STRING, sequence BIGINT, child STRING, text STRING, number BIGINT, blob BINARY"
)


@dataclass(frozen=True, slots=True)
class TaskReport:
    """One line of a task's answer; which fields count depends on `kind`."""

    name: str
    kind: ReportKind
    sequence: int | None = None
    child: str | None = None
    text: str | None = None
    number: int | None = None
    blob: bytes | None = None


def to_batch(results: Sequence[TaskReport]) -> pa.RecordBatch:
    columns = [[getattr(result, name) for result in results] for name in RESULT_SCHEMA.names]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, RESULT_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=RESULT_SCHEMA)


def from_table(table: pa.Table | pa.RecordBatch) -> list[TaskReport]:
    return [TaskReport(**{**row, "kind": ReportKind(row["kind"])}) for row in table.to_pylist()]


RowArrays = tuple[np.ndarray[tuple[int], np.dtype[np.int64]], pa.Array]


def pack_rows(rows: Sequence[RowArrays]) -> bytes:
    """Rows as (sequence, child) in Arrow's stream format: compact, and read back at once."""
    sequences = np.concatenate([part[0] for part in rows])
    children = pa.concat_arrays([part[1].cast(pa.string()) for part in rows])
    batch = pa.RecordBatch.from_arrays([pa.array(sequences), children], names=["sequence", "child"])
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, batch.schema) as writer:
        writer.write_batch(batch)
    return stream.getvalue().to_pybytes()  # type: ignore[no-any-return]


def unpack_rows(blob: bytes) -> RowArrays:
    table = pa.ipc.open_stream(blob).read_all()
    return table["sequence"].to_numpy(), table["child"].combine_chunks()
