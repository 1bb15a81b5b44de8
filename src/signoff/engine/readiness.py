"""Which parts of an engine keep the events of a source from being settled now; for `GET /ready` of an intake.

The way of a source's rows is followed to every sink that its events wait for: also through buffers that do
not sign for their rows, and not to sinks that settle nothing. What fails for single rows only is no reason:
a sink counts once the ledger says that it fails, a step if it asks a service about every event.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from signoff.engine.query import SourceQuery
from signoff.ledger.ledger import Ledger
from signoff.ledger.outcome import Wait
from signoff.link.handover import HandoverConfig
from signoff.state.key_index import repeats_another

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
    query: SourceQuery, failing: Mapping[tuple[str, str], str], waits: Mapping[tuple[str, str], str]
) -> dict[str, str]:
    source, graph = query.source, query.shared.graph
    reasons = {}
    if (failure := query.failure()) is not None:
        reasons["engine"] = f"its query stopped, and is started again: {failure}"
    elif held := query.why_held():
        reasons["engine"] = held
    behind = graph.downstream(source)
    for sink in behind & graph.sinks.keys():
        if (error := failing.get((sink, source)) or failing.get((sink, ""))) is not None:
            reasons[sink] = error
    for (where, name), error in waits.items():
        wait = Wait.parse(name)
        if where != source or wait is None or wait.step not in behind or repeats_another(error):
            continue
        if getattr(graph.nodes[wait.step].config, "type", "") == _ASKS_A_SERVICE:
            reasons[wait.step] = error
    return reasons
