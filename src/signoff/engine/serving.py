"""A sink as the driver holds it, and what the tasks of a pass need to serve it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type

from signoff.engine.compile import Plan
from signoff.engine.delivery import SinkTask, Span
from signoff.engine.forms import form_of
from signoff.ledger.outcome import SinkState
from signoff.pipeline.graph import Graph
from signoff.pipeline.model import SinkConfig
from signoff.sinks.contract import Sink


@dataclass(frozen=True)
class SinkEntry:
    """A sink as the driver holds it."""

    config: SinkConfig
    sink: Sink
    form: str = ""
    """What its rows are made by (see `engine.forms`)."""


def build_sinks(graph: Graph) -> Mapping[str, SinkEntry]:
    """The sinks of a pipeline, ready to be sent to executors."""
    entries = {}
    for name, node in graph.sinks.items():
        assert isinstance(node.config, SinkConfig)
        sink = node.config.build(graph.base)  # type: ignore[attr-defined]
        entries[name] = SinkEntry(node.config, sink, form_of(graph, name))
    return entries


def sink_task(
    name: str,
    entry: SinkEntry,
    state: SinkState,
    plan: Plan,
    covered: Sequence[Span] = (),
    step: str | None = None,
) -> SinkTask:
    """What the tasks of a pass need to serve one sink; with `step`, only with what comes through that one."""
    only: dict[int, frozenset[str]] | None = None
    if state.owed is not None:
        only = {}
        for row in state.owed:
            only[row.sequence] = only.get(row.sequence, frozenset()) | {row.child}
    sink_plan = plan.sinks[name]
    return SinkTask(
        name=name,
        sink=entry.sink,
        retry=entry.config.retry,
        # A step that is gone, or not in front of the sink any more, holds back nothing.
        deliveries=tuple(d for d in sink_plan.deliveries if step in d.passed) or sink_plan.deliveries,
        schema=pa.schema(
            [pa.field(n, to_arrow_type(t, timezone="UTC")) for n, t in sink_plan.schema.items()]
        ),
        attempts=state.attempts,
        says_rows=bool(state.split),
        only=only,
        covered=tuple(covered),
        ordered_by=entry.config.ordered_by,
        by_row=plan.unites and entry.sink.atomic,
        form=entry.form,
    )
