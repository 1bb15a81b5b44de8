"""Which event a user's function was called with when its worker died: notes that outlive the process.

Nothing in a process can catch `os._exit`, a crash of a library or the kernel's killer. So where a plan is run
to find out which events it fails on (`Step.black_box`), the number of an event is written into a small file
before the function is called with it, one file for each step and task. A worker that is dead leaves it there;
the next try of the task finds it, passes that event over, and goes on. One run finds up to three events in
each task that way, instead of one in all.

The directory is the driver's, so on a cluster whose workers do not share its disk nothing is found here, and
events are searched for as for any other failure of a plan (see `engine.batch.poison_search`).
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql.types import Row

from signoff.transforms.functions.arrow_calls import Call

EVENT = "__event"
"""The column, behind those of the user, that says which event a row was made from."""
_NUMBER = struct.Struct("<q")
_NONE = -1


class Recorded:
    """A call that is noted before it is made. Pickled to executors; there, one for each try of a task."""

    def __init__(self, call: Call, step: str, directory: Path) -> None:
        self.call, self.step, self.directory = call, step, directory
        self._file = -1
        self._passed: frozenset[int] = frozenset()

    def __call__(self, row: Row | None) -> Any:
        if row is None:
            return self.call(None)
        if self._file < 0:
            self._open()
        fields = row.asDict()
        event = fields.pop(EVENT)
        if event in self._passed:
            return self.call.failed(None, "its worker died of it")
        os.pwrite(self._file, _NUMBER.pack(event), 0)
        result = self.call(Row(**fields))
        os.pwrite(self._file, _NUMBER.pack(_NONE), 0)
        return result

    def failed(self, value: Any, reason: str) -> Any:
        return self.call.failed(value, reason)

    def _open(self) -> None:
        context = TaskContext.get()
        path = self.directory / f"{self.step}.{context.partitionId() if context else 0}"
        self._passed = frozenset(_died(path))
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.pwrite(self._file, _NUMBER.pack(_NONE) + b"".join(map(_NUMBER.pack, sorted(self._passed))), 0)


def deaths(directory: Path) -> dict[int, str]:
    """The events whose workers died while the function of a step was called with them; with the step."""
    return {event: path.name.rpartition(".")[0] for path in directory.iterdir() for event in _died(path)}


def _died(path: Path) -> set[int]:
    """First the event that was under way when the file was written last, then those of tries before."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return set()
    whole = data[: len(data) // _NUMBER.size * _NUMBER.size]
    return {number for (number,) in _NUMBER.iter_unpack(whole) if number != _NONE}
