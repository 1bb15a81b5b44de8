"""Which rows of a try were in an earlier try of the same run that has failed: what sends them again says so.

A run that failed after its rows had come to sinks is done anew, as another edition with other numbers. Tables
and files replace the rows of the edition before. A mail, a message or a request cannot be taken back: it is
sent again under the id that the row had then, so that whoever has it knows it again.

    state/jobs/<run>.ids     for each row of an edition that is not done: a digest, and the number of its id

Invariants: a row gets the id of an earlier one only if their values are equal, each earlier one once, and
only at sinks where neither the sink nor a step in front of it has changed since the first try: else another
message would have the id of one that is known. Only what fails hands ids on; a run that was done and is asked
for again has new ones. A kill leaves a file that is written again, alike.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from signoff.durable import write_whole
from signoff.jobs.outputs import events_in, is_bounded
from signoff.jobs.records import CANCELLED, Output, Record
from signoff.jobs.state_dir import run_directory
from signoff.pipeline.graph import Graph
from signoff.pipeline.model import SinkConfig

_MOST_ROWS = 1_000_000
"""Of an output. What more rows than these are sent to takes repeats for new: it would cost a run too much."""
_MOST_RANGES = 100_000
_DIGEST = 16
_CHANGED = ""
_FAILED = ("failed", CANCELLED)

Repeats = dict[str, tuple[tuple[int, int, int], ...]]
"""By output: the first number of a row here, that of its id, and how many follow each other in both."""


@dataclass
class Ids:
    """Of one edition."""

    rows: dict[str, list[tuple[bytes, int]]] = field(default_factory=dict)
    """By output: digest and number. Those of the edition in order; behind them others, of earlier tries."""
    sinks: dict[str, str] = field(default_factory=dict)
    """What each sink was in the first try; `_CHANGED` once it was another."""


def note(half: Graph, record: Record, before: Record | None) -> None:
    """Note the ids of an edition, whose rows are in its parts, with numbers. `before`: the last edition."""
    earlier = Ids()
    if before is not None and before.state in _FAILED and before.parameters == record.parameters:
        earlier = _with_numbers(_read(half.state, before), before)
    found = Ids(sinks={**earlier.sinks})
    for name, node in half.sinks.items():
        if isinstance(node.config, SinkConfig) and node.config.knows_ids:
            same = found.sinks.setdefault(name, _shape(half, name)) == _shape(half, name)
            found.sinks[name] = found.sinks[name] if same else _CHANGED
    for name, output in record.outputs.items():
        if output.rows <= _MOST_ROWS and half.downstream(name) & found.sinks.keys():
            parts = run_directory(half.state, record.id) / "parts"
            found.rows[name] = _matched(parts, output, earlier.rows.get(name, []))
    if found.rows:
        write_whole(_file(half.state, record), _packed(found))


def of(half: Graph, record: Record) -> dict[str, Repeats]:
    """By sink, the rows of an edition that it is to get under other ids than their own."""
    ids = _read(half.state, record)
    ranges: Repeats = {}
    for name, rows in ids.rows.items():
        output = record.outputs.get(name)
        if output is not None and output.first is not None:
            ranges[name] = _ranges(output.first, [number for _, number in rows[: output.rows]])
    changed = {name: found for name, found in ranges.items() if found}
    return {
        sink: changed for sink, shape in ids.sinks.items()
        if changed and sink in half.sinks and shape == _shape(half, sink)
    }  # fmt: skip


def forget(state: Path, record: Record) -> None:
    _file(state, record).unlink(missing_ok=True)


def _with_numbers(ids: Ids, of: Record) -> Ids:
    """Without the rows of a cancelled edition that were not in a log yet: others have their numbers now."""
    ends = {name: end for name, (_, end) in of.ranges.items()}
    rows = {
        name: [(digest, number) for digest, number in found if number < ends.get(name, 0)]
        for name, found in ids.rows.items()
    }
    return Ids(rows, ids.sinks)


def _matched(parts: Path, output: Output, earlier: list[tuple[bytes, int]]) -> list[tuple[bytes, int]]:
    known: dict[bytes, list[int]] = {}
    for digest, number in reversed(earlier):
        known.setdefault(digest, []).append(number)
    rows = []
    for place, digest in enumerate(_digests(parts, output)):
        same = known.get(digest)
        rows.append((digest, same.pop() if same else output.range[0] + place))
    return rows + [(digest, number) for digest, left in known.items() for number in reversed(left)]


def _digests(parts: Path, output: Output) -> list[bytes]:
    return [
        hashlib.blake2b(payload.as_py(), digest_size=_DIGEST).digest()
        for batch in events_in([parts / name for name in output.parts])
        for payload in batch.column("payload")
    ]


def _ranges(first: int, numbers: list[int]) -> tuple[tuple[int, int, int], ...]:
    found: list[tuple[int, int, int]] = []
    for number, there in enumerate(numbers, first):
        if number == there:
            continue
        if found:
            begin, begin_there, rows = found[-1]
            if begin + rows == number and begin_there + rows == there:
                found[-1] = (begin, begin_there, rows + 1)
                continue
        if len(found) == _MOST_RANGES:
            break
        found.append((number, there, 1))
    return tuple(found)


def _shape(half: Graph, sink: str) -> str:
    """Changes with whatever changes what a sink sends, besides the rows of the queries."""
    said: list[object] = []
    for name in sorted({sink, *half.upstream(sink)}):
        node = half.nodes[name]
        if node.kind == "source" or is_bounded(node):
            continue
        said.append([name, node.config.model_dump_json(exclude={"retry", "on_failure"})])
        said += [hashlib.sha256(file.read_bytes()).hexdigest() for file in node.config.code_files(half.base)]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()


def _packed(ids: Ids) -> bytes:
    arrays: dict[str, npt.NDArray[np.generic]] = {"sinks": np.array(json.dumps(ids.sinks))}
    for name, rows in ids.rows.items():
        digests = np.frombuffer(b"".join(digest for digest, _ in rows), np.uint8)
        arrays[f"{name}:digests"] = digests.reshape(-1, _DIGEST)
        arrays[f"{name}:numbers"] = np.array([number for _, number in rows], np.int64)
    out = io.BytesIO()
    np.savez(out, **arrays)  # type: ignore[arg-type]
    return out.getvalue()


def _read(state: Path, record: Record) -> Ids:
    try:
        content = _file(state, record).read_bytes()
    except FileNotFoundError:
        return Ids()
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        sinks: Mapping[str, str] = json.loads(str(arrays["sinks"]))
        found = Ids(sinks=dict(sinks))
        for key in arrays.files:
            name, _, what = key.rpartition(":")
            if what == "digests":
                digests = [row.tobytes() for row in arrays[key]]
                found.rows[name] = list(zip(digests, arrays[f"{name}:numbers"].tolist(), strict=True))
    return found


def _file(state: Path, record: Record) -> Path:
    directory = run_directory(state, record.id)
    return directory.with_name(f"{directory.name}.ids")
