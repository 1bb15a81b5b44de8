"""The second half of a job: each table or query that anything else reads becomes a source with a log.

    windows ─► by_station (sql) ─► big (filter) ─► mail          the job as it is written

    by_station (log) ─► by_station.rows ─► big ─► mail           what the engine runs

So does each report that anything reads; what comes out of its log is the one row of its edition, which is put
there when it is published (see `editions`).

Rows are in the log as JSON, as behind a buffer. They are appended from the parts that the first half left on
disk, in order; after a kill it goes on behind the last row that is there.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal

import pyarrow as pa

from signoff.jobs.records import Output
from signoff.log import LogWriter
from signoff.log.event_schema import EVENT_SCHEMA
from signoff.pipeline.edition_rules import read_publishers
from signoff.pipeline.graph import Graph, Node, Port
from signoff.pipeline.model import LogSettings, SinkConfig, SourceConfig
from signoff.transforms.handed_rows import RowsConfig

ROWS = ".rows"
EDITIONS = ".editions"
"""Ends the name of the log of what a sink has published."""
_NO_LIMIT = 2**62


class OutputSourceConfig(SourceConfig):
    """The rows of a table or query. Never written by users."""

    type: Literal["job_rows"] = "job_rows"
    can_acknowledge: ClassVar[bool] = False


def is_bounded(node: Node) -> bool:
    """Whether a node belongs to the first half."""
    return bool(getattr(node.config, "bounded", False))


def output_names(graph: Graph) -> list[str]:
    """The tables and queries whose rows go on to something else."""
    read = {port.node for node in graph.nodes.values() if not is_bounded(node) for port in node.inputs}
    return [name for name, node in graph.nodes.items() if is_bounded(node) and name in read]


def second_half(graph: Graph, columns: Mapping[str, str] | None = None) -> Graph:
    """What the engine runs. `columns`: the schemas of the outputs; not needed to look at names only."""
    outputs = output_names(graph)
    nodes: dict[str, Node] = {}
    for name in outputs:
        node = graph.nodes[name]
        source = OutputSourceConfig()
        nodes[name] = Node(name, "source", source, line=node.line, file=node.file)
        step = RowsConfig(input=name, columns=(columns or {}).get(name, '{"type":"struct","fields":[]}'))
        nodes[name + ROWS] = Node(
            name + ROWS, "transform", step, (Port(name),), node.line, file=node.file, stands_for=name
        )
    comes_from = {name: name + ROWS for name in outputs}
    for name in read_publishers(graph):
        node, log = graph.nodes[name], name + EDITIONS
        assert isinstance(node.config, SinkConfig)
        step = RowsConfig(input=log, columns=node.config.edition_columns)
        nodes[log] = Node(log, "source", OutputSourceConfig(), line=node.line, file=node.file)
        nodes[log + ROWS] = Node(log + ROWS, "transform", step, (Port(log),), node.line, file=node.file)
        comes_from[name] = log + ROWS
    for name, node in graph.nodes.items():
        if not is_bounded(node):
            inputs = tuple(Port(comes_from[p.node]) if p.node in comes_from else p for p in node.inputs)
            nodes[name] = replace(node, inputs=inputs)
    # Its rows are received by nobody: traces of them would begin with spans that nobody makes.
    settings = graph.settings.model_copy(update={"traces": None})
    return replace(graph, nodes=nodes, warnings=(), settings=settings)


def append(log: Path, output: Output, parts: Path) -> None:
    """Append the rows that are not there yet. The numbers of an output are known before its first row is."""
    writer = LogWriter(log, LogSettings(max_bytes=_NO_LIMIT))
    try:
        first, end = output.range
        there = writer.next_sequence - first
        assert 0 <= there <= output.rows, f"{log}: it ends at {writer.next_sequence}, not in {first} to {end}"
        for events in events_in([parts / name for name in output.parts]):
            if there >= events.num_rows:
                there -= events.num_rows
                continue
            writer.append(_received_now(events.slice(there)))
            writer.sync()
            there = 0
        assert writer.next_sequence == end
    finally:
        writer.close()


def next_number(log: Path) -> int:
    """Which number the next row of a log gets."""
    writer = LogWriter(log, LogSettings(max_bytes=_NO_LIMIT))
    try:
        return writer.next_sequence
    finally:
        writer.close()


def events_in(parts: list[Path]) -> Iterator[pa.RecordBatch]:
    for part in parts:
        with part.open("rb") as file:
            yield from pa.ipc.open_stream(file)


def _received_now(events: pa.RecordBatch) -> pa.RecordBatch:
    place = EVENT_SCHEMA.get_field_index("received_at")
    now = pa.scalar(time.time_ns() // 1000, pa.int64()).cast(EVENT_SCHEMA.field(place).type)
    return events.set_column(place, EVENT_SCHEMA.field(place), pa.repeat(now, events.num_rows))
