"""Sends what a `Simulation` makes to files or to RabbitMQ, at a rate or as fast as possible.

What it keeps: messages go out in the order of their numbers, and `Sent.stop` is the number of the first
one that was not sent: a run that was stopped or failed can go on from there, with the same messages it
would have sent. In files there are whole lines only, also after Ctrl-C.

The simulation itself is `signoff.sources.stations`, so that the source `generate` can bring its
messages straight into a pipeline (`template: stations`).
"""

from __future__ import annotations

import csv
import io
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from signoff.errors import SignoffError
from signoff.sources.pace import Pace
from signoff.sources.stations import MESSAGES, PIECE, Simulation, SimulationConfig
from signoff.sources.stations_text import ERRORS, KINDS, Kind

__all__ = [
    "CSV_COLUMNS",
    "ERRORS",
    "KINDS",
    "MESSAGES",
    "FileTarget",
    "Form",
    "Kind",
    "PipeTarget",
    "Sent",
    "Simulation",
    "SimulationConfig",
    "Target",
    "simulate",
]

Form = Literal["json", "csv"]
CSV_COLUMNS = {
    "station_id": "stationId",
    "datapoint_id": "dataPointId",
    "alarm_id": "alarmId",
    "event_time": "eventTime",
    "value": "value",
    "valueThreshold": "valueThreshold",
    "isActive": "isActive",
}
"""The header of CSV files, and which field of a message a column is."""

_WAIT_S = 0.2
"""How long a slow rate may keep `simulate` from noticing that it is to stop."""


class Target(ABC):
    """Where messages go. Used as a context: leaving it makes complete what was written."""

    @abstractmethod
    def write(self, messages: pa.RecordBatch) -> None:
        """Take messages (schema MESSAGES), the ones after those of the last call. Raises SignoffError; nobody
        knows then which of these were taken."""

    @abstractmethod
    def close(self) -> None:
        """Complete what was written."""

    def __enter__(self) -> Target:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class FileTarget(Target):
    """Lines in one file or several, each holding a part of the stream. A file has its name when it is
    complete; until then `.part` stands behind it, so that nobody reads half of it."""

    def __init__(self, paths: list[Path], first: int, stop: int, form: Form = "json") -> None:
        """For the messages from `first` up to `stop`. Raises SignoffError when one of the files exists."""
        for path in paths:
            if path.exists():
                raise SignoffError(f"{path} exists already; remove it, or give another name")
        self._paths, self._first, self._stop, self._form = paths, first, stop, form
        self._open: _Open | None = None

    def write(self, messages: pa.RecordBatch) -> None:
        while messages.num_rows:
            number = messages.column("number")[0].as_py()
            index, end = self._file_of(number)
            here = messages.slice(0, end - number)
            try:
                self._write(self._paths[index], written(here, self._form))
            except OSError as error:
                raise SignoffError(f"{self._paths[index]}: cannot write: {error.strerror}") from error
            messages = messages.slice(here.num_rows)

    def close(self) -> None:
        """A line that was cut off by a failure is removed."""
        if self._open is not None:
            path, descriptor, length = self._open
            self._open = None
            os.ftruncate(descriptor, length)
            os.close(descriptor)
            _part(path).rename(path)

    def _file_of(self, number: int) -> tuple[int, int]:
        """Which file the message belongs to, and the number of the first message that does not."""
        count, files = self._stop - self._first, len(self._paths)
        index = (number - self._first) * files // count
        return index, self._first + -(-(index + 1) * count // files)

    def _write(self, path: Path, content: memoryview) -> None:
        if self._open is None or self._open.path != path:
            self.close()
            path.parent.mkdir(parents=True, exist_ok=True)
            self._open = _Open(path, os.open(_part(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666), 0)
            content = memoryview(_heading(self._form) + content)
        _write_all(self._open.descriptor, content)
        self._open = self._open._replace(length=self._open.length + len(content))


class _Open(NamedTuple):
    path: Path
    descriptor: int
    length: int
    """Bytes of whole messages."""


class PipeTarget(Target):
    """Lines to an open file descriptor, such as standard output."""

    def __init__(self, descriptor: int, form: Form = "json") -> None:
        self._descriptor, self._form = descriptor, form
        self._heading = _heading(form)

    def write(self, messages: pa.RecordBatch) -> None:
        try:
            _write_all(self._descriptor, memoryview(self._heading + written(messages, self._form)))
            self._heading = b""
        except OSError as error:
            raise SignoffError(f"cannot write: {error.strerror}") from error

    def close(self) -> None:
        """It is not ours to close."""


@dataclass(slots=True)
class Sent:
    """What was sent."""

    stop: int
    """The number after the last message that was sent."""
    kinds: Counter[Kind] = field(default_factory=Counter)
    sensors: Counter[int] = field(default_factory=Counter)
    late: int = 0
    bytes: int = 0
    earliest: datetime | None = None
    latest: datetime | None = None
    """Of the event times of alarms and duplicates."""

    @property
    def count(self) -> int:
        return self.kinds.total()

    def add(self, messages: pa.RecordBatch) -> None:
        kinds = messages.column("kind").indices.to_numpy()
        for kind, number in zip(KINDS, np.bincount(kinds, minlength=len(KINDS)).tolist(), strict=True):
            self.kinds[kind] += number
        for one in pc.value_counts(messages.column("dataPointId")).to_pylist():
            self.sensors[one["values"]] += one["counts"]
        self.late += pc.sum(messages.column("late")).as_py() or 0
        self.bytes += pc.sum(pc.binary_length(messages.column("payload"))).as_py()
        self.stop += messages.num_rows
        times = pc.min_max(messages.column("eventTime").filter(messages.column("lag_s").is_valid())).as_py()
        self.earliest = min((one for one in (self.earliest, times["min"]) if one), default=None)
        self.latest = max((one for one in (self.latest, times["max"]) if one), default=None)


def simulate(
    simulation: Simulation,
    target: Target,
    sent: Sent,
    stop: int,
    *,
    rate: float | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> None:
    """Send the messages from `sent.stop` up to, not including, `stop`, and count them in `sent`, which also
    holds after an error. `stopped` is asked between pieces."""
    pace = Pace(rate)
    while sent.stop < stop and not stopped():
        allowed = pace.allowed(min(PIECE, stop - sent.stop), _WAIT_S)
        for messages in simulation.pieces(sent.stop, sent.stop + allowed):
            target.write(messages)
            sent.add(messages)


def lines(payloads: pa.Array) -> memoryview:
    """The payloads as lines, in one piece."""
    joined = pc.binary_join_element_wise(payloads, b"", b"\n")
    length = pc.sum(pc.binary_length(joined)).as_py() or 0
    return memoryview(joined.buffers()[2])[:length]


def written(messages: pa.RecordBatch, form: Form) -> memoryview:
    """Messages as lines."""
    if form == "json":
        return lines(messages.column("payload"))
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(map(_csv_row, messages.column("payload").to_pylist()))
    return memoryview(text.getvalue().encode())


def _csv_row(payload: bytes) -> list[str]:
    """The fields of a message, whatever is wrong with them; of one that is no JSON, its text as one field."""
    try:
        fields = orjson.loads(payload)
    except orjson.JSONDecodeError:
        return [payload.decode(errors="replace")]
    return [_csv_value(fields.get(name)) for name in CSV_COLUMNS.values()]


def _csv_value(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _heading(form: Form) -> bytes:
    return b"" if form == "json" else (",".join(CSV_COLUMNS) + "\n").encode()


def _write_all(descriptor: int, content: memoryview) -> None:
    while content:
        content = content[os.write(descriptor, content) :]


def _part(path: Path) -> Path:
    return path.with_name(path.name + ".part")
