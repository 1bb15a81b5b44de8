"""What a sink has published in a run (its edition), on the way to those that read it: one row in a log.

    published ─► row kept in the run's directory ─► its number recorded ─► row in the log ─► settled

Invariants: a run hands over one edition of each sink, however often it is killed, and always the same row;
it is in the log once. An edition of another run has another number, and names that run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from signoff.durable import write_whole
from signoff.jobs.outputs import EDITIONS, append, next_number
from signoff.jobs.records import Output, Record
from signoff.jobs.state_dir import run_directory
from signoff.log.event_schema import EVENT_SCHEMA
from signoff.pipeline.graph import Graph
from signoff.pipeline.model import SinkConfig
from signoff.private import make_private


def noted(record: Record) -> dict[str, Output]:
    """The editions of a run that have a number, by the name of their log."""
    return {name: output for name, output in record.outputs.items() if name.endswith(EDITIONS)}


def keep(graph: Graph, record: Record, sink: str, row: Mapping[str, Any]) -> Output:
    """Have the row of a sink on disk, until it is in its log."""
    config, directory = graph.nodes[sink].config, _kept(graph, record)
    assert isinstance(config, SinkConfig)
    make_private(directory)
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, EVENT_SCHEMA) as stream:
        stream.write_batch(_event(row))
    write_whole(directory / sink, bytes(out.getvalue()))
    return Output(1, config.edition_columns, (sink,))


def put(graph: Graph, record: Record) -> None:
    """Append the rows that are not in their logs yet."""
    for name, output in noted(record).items():
        log = graph.state / "log" / name
        if next_number(log) < output.range[1]:
            append(log, output, _kept(graph, record))


def _kept(graph: Graph, record: Record) -> Path:
    return run_directory(graph.state, record.id) / "editions"


def _event(row: Mapping[str, Any]) -> pa.RecordBatch:
    cells = {"payload": json.dumps(row, ensure_ascii=False).encode(), "received_at": 0}
    arrays = [pa.array([cells.get(each.name)], each.type) for each in EVENT_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=EVENT_SCHEMA)
