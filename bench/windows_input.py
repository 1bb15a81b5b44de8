"""What goes into the benchmark of windows, and what must come out of it.

The same alarms, in the same order, three times: in a log, as text files of half a batch each (for Spark,
which takes two per batch), and dealt to two text files (for Flink, see below). What must come out is computed
from what the simulation says of each message, without Spark, Flink or JSON.

No message is late: `late: 0`, and the disorder is the lateness that is allowed. A variant leaves some windows
open at the end, and which ones depends on how it moves its watermark; so each is held against all windows
up to the last one that it closed, and says how many it left open.

Two files for Flink: its file source hands files to its readers in no certain order. With a file per batch
a reader goes back and forth in time and drops much of what it reads as late (40 to 70 % in a try); with a
file per reader, each reads its own in order.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from signoff.log import LogWriter
from signoff.log.event_schema import EVENT_SCHEMA
from signoff.pipeline.model import LogSettings
from signoff_alarms.simulator import Simulation, SimulationConfig, lines

MINUTES, LATENESS_MINUTES = 10, 15
KEYS = ("stationId", "dataPointId", "alarmId")
PIECE = 1000
SEED = 7

_ROW = pa.schema([("window_end", pa.string()), *((key, pa.int64()) for key in KEYS), ("count", pa.int64())])


class WrongResultError(Exception):
    """A variant came to other windows than it should have."""


@dataclass(frozen=True)
class Result:
    """What a variant has written, after it was found to be right."""

    rows: int
    """Windows by keys that it closed."""
    events: int
    """In them."""
    open_rows: int
    """That it left open."""
    closed_until: str
    """End of the last window that it closed."""


class Input:
    """So many alarms, in a directory of their own."""

    def __init__(
        self, directory: Path, events: int, *, batch: int, per_day: float, alarms: Sequence[int]
    ) -> None:
        self.events, self.batch = events, batch
        self.log, self.text, self.dealt = (directory / name for name in ("log", "text", "dealt"))
        for path in (self.text, self.dealt):
            path.mkdir(parents=True)
        self._alarms = pa.array(alarms, pa.int32())
        simulation = Simulation(
            SEED, SimulationConfig(disorder=LATENESS_MINUTES * 60, late=0, per_day=per_day)
        )
        self.kept, self._latest, parts = 0, [], []
        log = LogWriter(self.log, LogSettings(max_bytes=64 * 1024**3))
        for first in range(0, events, batch):
            messages = simulation.messages(first, min(first + batch, events))
            self._write_text(first, messages)
            self._deal(messages)
            self._log(log, messages)
            parts.append(self._windows(messages))
        log.close()
        self._expected = _counted(pa.concat_tables(parts))

    def check(self, out: Path) -> Result:
        """Hold the results in a directory against what they should be. Raises WrongResultError."""
        found = _counted(_read(out)).sort_by([(name, "ascending") for name in _ROW.names])
        until = pc.max(found.column("window_end")).as_py() or ""
        if until < self._surely_closed:
            raise WrongResultError(f"closed until {until or 'nowhere'}, not until {self._surely_closed}")
        is_closed = pc.less_equal(self._expected.column("window_end"), until)
        expected = self._expected.filter(is_closed).sort_by([(name, "ascending") for name in _ROW.names])
        events, wanted = (pc.sum(table.column("count")).as_py() or 0 for table in (found, expected))
        if not found.equals(expected):
            raise WrongResultError(
                f"{found.num_rows:,} rows of {events:,} events until {until}; "
                f"it should be {expected.num_rows:,} rows of {wanted:,} events"
            )
        return Result(found.num_rows, events, self._expected.num_rows - found.num_rows, until)

    @property
    def _surely_closed(self) -> str:
        """A window whose end this is has been closed by whoever is two batches behind with its watermark."""
        if len(self._latest) < 3:
            return ""
        watermark = max(self._latest[:-2]) - timedelta(minutes=LATENESS_MINUTES)
        closed = watermark.replace(minute=watermark.minute // MINUTES * MINUTES, second=0)
        return closed.strftime("%Y-%m-%d %H:%M:%S")

    def _write_text(self, first: int, messages: pa.Table) -> None:
        half = -(-messages.num_rows // 2)
        for number in range(2):
            path = self.text / f"{first:012d}-{number}.jsonl"
            path.write_bytes(_lines(messages.slice(number * half, half)))
            # Spark takes files in the order of their times, which it reads to the second on some systems.
            os.utime(path, (1_600_000_000 + first + number,) * 2)

    def _deal(self, messages: pa.Table) -> None:
        for number in range(2):
            with (self.dealt / f"{number}.jsonl").open("ab") as file:
                for start in range(number * PIECE, messages.num_rows, 2 * PIECE):
                    file.write(_lines(messages.slice(start, PIECE)))

    def _log(self, log: LogWriter, messages: pa.Table) -> None:
        for payloads in (batch.column("payload") for batch in messages.to_batches(max_chunksize=10_000)):
            now = pa.scalar(int(time.time() * 1e6), pa.timestamp("us", "UTC"))
            columns = {"payload": payloads, "received_at": pa.repeat(now, len(payloads))}
            arrays = [columns.get(field.name, pa.nulls(len(payloads), field.type)) for field in EVENT_SCHEMA]
            log.append(pa.RecordBatch.from_arrays(arrays, schema=EVENT_SCHEMA))
        log.sync()

    def _windows(self, messages: pa.Table) -> pa.Table:
        """What the messages come to: erroneous ones and those that the filter drops are left out."""
        sound = pc.is_in(messages.column("kind").cast(pa.string()), pa.array(["alarm", "duplicate"]))
        kept = messages.filter(pc.and_(sound, pc.is_in(messages.column("alarmId"), self._alarms)))
        self.kept += kept.num_rows
        times = kept.column("eventTime")
        self._latest.append(pc.max(times).as_py() or datetime.min.replace(tzinfo=UTC))
        ends = pc.add(pc.floor_temporal(times, MINUTES, unit="minute"), pa.scalar(timedelta(minutes=MINUTES)))
        columns = [
            pc.strftime(ends.cast(pa.timestamp("s", "UTC")), "%Y-%m-%d %H:%M:%S"),
            *(kept.column(key).cast(pa.int64()) for key in KEYS),
            pa.repeat(pa.scalar(1, pa.int64()), kept.num_rows),
        ]
        return _counted(pa.table(columns, schema=_ROW))


def _counted(rows: pa.Table) -> pa.Table:
    """One row for each window and keys."""
    counted = rows.group_by(_ROW.names[:-1]).aggregate([("count", "sum")])
    return counted.rename_columns([*_ROW.names[:-1], "count"]).select(_ROW.names).combine_chunks()


def _read(out: Path) -> pa.Table:
    """The results of a variant: JSON lines in files, whose times are written in this way or that. A row that
    is there twice is a wrong result."""
    files = [path for path in out.rglob("*") if path.is_file() and not path.name.startswith((".", "_"))]
    content = b"".join(path.read_bytes() for path in files if path.parent.name != "_spark_metadata")
    if not content:
        return _ROW.empty_table()
    rows = pyarrow.json.read_json(
        io.BytesIO(content),
        pyarrow.json.ReadOptions(block_size=16 * 1024**2),
        pyarrow.json.ParseOptions(explicit_schema=_ROW, unexpected_field_behavior="ignore"),
    ).select(_ROW.names)
    ends = pc.replace_substring(pc.utf8_slice_codeunits(rows.column("window_end"), 0, 19), "T", " ")
    rows = rows.set_column(0, "window_end", ends)
    if (once := _counted(rows).num_rows) != rows.num_rows:
        raise WrongResultError(f"{rows.num_rows - once:,} of {rows.num_rows:,} rows are there twice")
    return rows


def _lines(messages: pa.Table) -> bytes:
    return bytes(lines(messages.column("payload").combine_chunks()))
