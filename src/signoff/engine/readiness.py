"""Which parts of an engine keep the events of a source from being settled now; for `GET /ready` of an intake.

The way of a source's rows is followed to every sink that its events wait for: also through buffers that do
not sign for their rows, and not to sinks that settle nothing. What fails for single rows only is no reason:
a sink counts once the ledger says that it fails, a step if it asks a service about every event.

A sink that failed and to which nothing is owed any more (its events have expired) is asked by nobody. It
counts until the time at which it would have been asked again; then only a new event can find out how it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from signoff.engine.query.base import SourceQuery
from signoff.ledger.batch_state import Wait
from signoff.ledger.ledger import Ledger
from signoff.ledger.sink_totals import SinkFailure
from signoff.link.handover import HandoverConfig
from signoff.pipeline.model import Retry, SinkConfig
from signoff.stateful.key_index import repeats_another

_ASKS_A_SERVICE = "enrich"


def not_ready(
    sources: Collection[str], queries: Mapping[str, SourceQuery], ledger: Ledger, trouble: str
) -> dict[str, dict[str, str]]:
    """By source: who is not ready, and why. `trouble`: why nothing can be recorded, or ''."""
    failing, waits = ledger.failing()
    found: dict[str, dict[str, str]] = {}
    for source in sources:
        reasons = {"disk": trouble} if trouble else {}
        for query in _on_the_way(source, queries):
            reasons |= _of_query(query, failing, waits)
        if reasons:
            found[source] = reasons
    return found


def _on_the_way(source: str, queries: Mapping[str, SourceQuery]) -> Iterator[SourceQuery]:
    """The source's own query, and those behind logs of which its events await the answer."""
    left, seen = [source], set[str]()
    while left:
        name = left.pop()
        if name in seen or name not in queries:
            continue
        seen.add(name)
        query = queries[name]
        yield query
        graph = query.shared.graph
        for sink in graph.downstream(name) & graph.sinks.keys():
            config = graph.nodes[sink].config
            if isinstance(config, HandoverConfig) and not config.outside and name in config.awaited_by:
                left.append(config.place.log.name)


def _of_query(
    query: SourceQuery, failing: Mapping[tuple[str, str], SinkFailure], waits: Mapping[tuple[str, Wait], str]
) -> dict[str, str]:
    source, graph = query.source, query.shared.graph
    reasons = {}
    if (failure := query.failure()) is not None:
        reasons["engine"] = f"its query stopped, and is started again: {failure}"
    elif held := query.why_held():
        reasons["engine"] = held
    behind = graph.downstream(source)
    for sink in behind & graph.sinks.keys():
        config = graph.nodes[sink].config
        retry = config.retry if isinstance(config, SinkConfig) else Retry()
        for said in (failing.get((sink, source)), failing.get((sink, ""))):
            if said is not None and _counts(said, retry):
                reasons.setdefault(sink, said.error)
    for (where, wait), error in waits.items():
        if where != source or wait.step not in behind or repeats_another(error):
            continue
        if getattr(graph.nodes[wait.step].config, "type", "") == _ASKS_A_SERVICE:
            reasons[wait.step] = error
    return reasons


def _counts(failure: SinkFailure, retry: Retry) -> bool:
    """Whether a sink that failed keeps events that come now from being settled, as far as one knows."""
    return failure.asked_again or failure.ago_s < retry.wait_s(failure.attempts, lambda: 1.0)
