"""Which query keeps the state of which kind of step."""

from __future__ import annotations

from signoff.engine.query.base import Shared, SourceQuery
from signoff.engine.split.stateful import (
    BurstBoundary,
    BurstSourceConfig,
    FoldBoundary,
    FoldSourceConfig,
    StatefulBoundary,
    StateQuerySourceConfig,
    WindowBoundary,
    WindowSourceConfig,
)
from signoff.engine.state_queries.base import StateQuery, Surroundings
from signoff.engine.state_queries.burst_query import BurstQuery
from signoff.engine.state_queries.fold_query import FoldQuery
from signoff.engine.state_queries.window_query import WindowQuery

_BY_BOUNDARY: dict[type[StatefulBoundary], type[StateQuery]] = {
    WindowBoundary: WindowQuery,
    BurstBoundary: BurstQuery,
    FoldBoundary: FoldQuery,
}
_BY_SOURCE: dict[type[StateQuerySourceConfig], type[WindowQuery | FoldQuery]] = {
    WindowSourceConfig: WindowQuery,
    BurstSourceConfig: BurstQuery,
    FoldSourceConfig: FoldQuery,
}


def query_class(boundary: StatefulBoundary) -> type[StateQuery]:
    """What keeps the state behind a boundary."""
    return _BY_BOUNDARY[type(boundary)]


def state_query(shared: Shared, source: str, around: Surroundings) -> SourceQuery | None:
    """What keeps the state behind a log; None if there is no state behind it."""
    config = shared.graph.nodes[source].config
    if not isinstance(config, StateQuerySourceConfig):
        return None
    return _BY_SOURCE[type(config)](shared, source, around)
