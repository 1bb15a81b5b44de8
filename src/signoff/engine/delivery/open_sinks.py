"""A sink as the driver holds it, and what the tasks of a pass need to serve it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type

from signoff.engine.delivery.sink_pass import SinkTask, Span
from signoff.engine.plan.fingerprint import form_of
from signoff.engine.plan.plan import Plan
from signoff.installed_types import build
from signoff.ledger.batch_state import OwesAll, SinkState
from signoff.ledger.ledger import Ledger
from signoff.pipeline.graph import Graph
from signoff.pipeline.model import SinkConfig
from signoff.sinks.contract import RunRef, Sink


@dataclass(frozen=True)
class SinkEntry:
    """A sink as the driver holds it."""

    config: SinkConfig
    sink: Sink
    form: str = ""
    """What its rows are made by (see `engine.plan.fingerprint`)."""
    place: str = ""
    """Where it keeps batches that replace what has their names; '' if it does not."""


def build_sinks(graph: Graph) -> Mapping[str, SinkEntry]:
    """The sinks of a pipeline, ready to be sent to executors."""
    entries = {}
    for name, node in graph.sinks.items():
        assert isinstance(node.config, SinkConfig)
        sink = build(node.config, graph.base)
        place = (node.config.target(graph.base) or "") if sink.takes_back else ""
        entries[name] = SinkEntry(node.config, sink, form_of(graph, name), place)
    return entries


def run_of(ledger: Ledger, *, bounded: bool) -> RunRef:
    """The run of a pipeline, as its sinks know it: what is in one state directory belongs together."""
    return RunRef(ledger.state_id, bounded)


def says_rows(state: SinkState) -> bool:
    """Whether a pass must say of which rows by name a sink has heard: it is known which ones came before."""
    return isinstance(state, OwesAll) and bool(state.named)


def sink_task(
    name: str,
    entry: SinkEntry,
    state: SinkState,
    plan: Plan,
    covered: Sequence[Span] = (),
    step: str | None = None,
    *,
    named_here: bool = True,
    published_as: int = 0,
) -> SinkTask:
    """What the tasks of a pass need to serve one sink; with `step`, only with what comes through that one.

    `named_here`: what is owed is named as it came to the sink.
    """
    only: dict[int, frozenset[str]] | None = None
    if not state.wants_all:
        only = {}
        for row in state.wanted_rows:
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
        says_rows=says_rows(state),
        only=only,
        named_here=named_here and step is None,
        covered=tuple(covered),
        ordered_by=entry.config.ordered_by,
        by_row=plan.unites and entry.sink.atomic,
        form=entry.form,
        published_as=published_as,
    )
