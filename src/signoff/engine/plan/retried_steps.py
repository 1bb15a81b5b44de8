"""The steps of a pipeline that are run again for a row: they may fail for now, or their rows wait."""

from __future__ import annotations

from dataclasses import dataclass

from signoff.pipeline.graph import Graph
from signoff.pipeline.model import OnFailure, Retry, TransformConfig

FOLLOWING = Retry(initial_ms=40, max_ms=40)
"""How soon it is looked again whether the event that a row waits for is settled."""


@dataclass(frozen=True)
class RetriedStep:
    """A step that may fail for now."""

    policy: OnFailure
    """What becomes of a row after the last try."""
    retry: Retry
    sinks: frozenset[str]
    """Those behind it."""
    behind: frozenset[str] = frozenset()
    """The steps behind it."""
    follows: bool = False
    """It did not fail: its rows wait for other events (see `duplicates`), and are no attempts of anybody."""


def retried_steps(graph: Graph) -> dict[str, RetriedStep]:
    """The steps of a pipeline that have a `retry`, or whose rows wait for other events."""
    found = {}
    for name, node in graph.transforms.items():
        assert isinstance(node.config, TransformConfig)
        retry = getattr(node.config, "retry", None)
        follows = bool(getattr(node.config, "follows", False))
        if isinstance(retry, Retry) or follows:
            behind = graph.downstream(name)
            sinks = frozenset(behind & graph.sinks.keys())
            found[name] = RetriedStep(
                node.config.on_error,
                FOLLOWING if follows or not isinstance(retry, Retry) else retry,
                sinks,
                frozenset(behind - sinks),
                follows,
            )
    return found
