"""The sinks of a test: what comes to them is kept in this process.

Tasks hand their rows to the driver, where `commit` keeps them under the name of the batch: one that is done
again replaces itself. A `Tap` only looks on, so that looking at a transform changes no outcome.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import pyarrow as pa

from signoff.pipeline.model import SinkConfig
from signoff.sinks.contract import BatchRef, Part, Refusal, Sink, Writer
from signoff.sinks.refusal import fit

_kept: dict[str, dict[str, dict[str, list[pa.Table]]]] = {}
"""By test run, sink and batch. A sink is made anew from its config wherever it is needed."""


def begin(run: str) -> None:
    _kept[run] = {}


def take(run: str) -> dict[str, list[dict[str, Any]]]:
    """The rows of each sink of a run, in the order of batches; they are forgotten here."""
    found = _kept.pop(run, {})
    return {
        sink: [row for key in sorted(batches) for table in batches[key] for row in table.to_pylist()]
        for sink, batches in found.items()
    }


class CollectConfig(SinkConfig):
    """Stands for a sink of the pipeline, with the policies of that sink."""

    type: Literal["collect"] = "collect"
    run: str
    name: str
    fails_with: str | None = None
    """Every row is refused for good, with this reason."""
    computed: Mapping[str, str] = {}
    """The expressions of that sink: a row for which one fails does not come to it."""

    def expressions(self) -> Mapping[str, str]:
        return self.computed

    def build(self, base: Path) -> CollectSink:
        return CollectSink(self.run, self.name, self.fails_with, tuple(self.computed))


class TapConfig(SinkConfig):
    """Looks at what a transform gives."""

    type: Literal["tap"] = "tap"
    run: str
    name: str

    def build(self, base: Path) -> Tap:
        return Tap(self.run, self.name, None)


class CollectSink(Sink):
    atomic: ClassVar[bool] = True

    def __init__(self, run: str, name: str, fails_with: str | None, computed: Sequence[str] = ()) -> None:
        self._run, self._name, self._fails_with, self._computed = run, name, fails_with, computed

    def open(self, part: Part) -> Writer:
        return CollectWriter(self._fails_with, self._computed)

    def commit(self, batch: BatchRef, parts: Sequence[bytes]) -> None:
        tables = [pa.ipc.open_stream(part).read_all() for part in parts]
        _kept.setdefault(self._run, {}).setdefault(self._name, {})[batch.key] = tables


class Tap(CollectSink):
    observes: ClassVar[bool] = True


class CollectWriter(Writer):
    """Keeps rows, without the columns that are no part of them."""

    def __init__(self, fails_with: str | None, computed: Sequence[str]) -> None:
        self._fails_with, self._computed = fails_with, computed
        self._rows: list[pa.RecordBatch] = []

    def write(self, rows: pa.RecordBatch) -> Sequence[Refusal]:
        if self._fails_with is not None:
            return [Refusal(index, self._fails_with, transient=False) for index in range(rows.num_rows)]
        sorted_out = fit(rows.select([name for name in rows.schema.names if name not in self._computed]))
        self._rows.append(sorted_out.rows)
        return sorted_out.refusals

    def close(self) -> bytes | None:
        if not self._rows:
            return None
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self._rows[0].schema) as writer:
            for rows in self._rows:
                writer.write_batch(rows)
        return bytes(sink.getvalue())
