"""The end of a run that has one: sinks that make something of all its rows do so (see `Sink.finish`).

It comes when every source has ended and everything is settled, and not when a run is stopped before: the next
one goes on with the same rows, and finishes. A sink that fails here has lost nothing. The run ends with a
failure, and the next one asks the sink again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator

from signoff.errors import SinkError, TransientError
from signoff.installed_types import build
from signoff.pipeline.graph import Graph
from signoff.pipeline.model import SinkConfig
from signoff.pipeline.secrets import redact
from signoff.sinks.contract import RunRef, Sink

logger = logging.getLogger(__name__)


def finishing_sinks(graph: Graph) -> Iterator[tuple[str, SinkConfig]]:
    """The sinks that have something to do at the end."""
    for name, node in graph.sinks.items():
        if isinstance(node.config, SinkConfig) and node.config.finishes:
            yield name, node.config


def finish_sinks(
    graph: Graph, run: RunRef, patience_s: float, sleep: Callable[[float], None] = time.sleep
) -> list[str]:
    """Have every sink finish; returns why some did not. `patience_s`: how long one is asked again."""
    failures = []
    for name, config in finishing_sinks(graph):
        try:
            sink: Sink = build(config, graph.base)
            sink.begin(run)
            _finish(name, sink, config, run, patience_s, sleep)
            sink.release()
        except SinkError as error:
            failures.append(f'sink "{name}" could not finish: {redact(str(error))}; the next run tries again')
    return failures


def _finish(
    name: str, sink: Sink, config: SinkConfig, run: RunRef, patience_s: float, sleep: Callable[[float], None]
) -> None:
    deadline, attempts = time.monotonic() + patience_s, 0
    while True:
        attempts += 1
        try:
            return sink.finish(run)
        except TransientError as error:
            wait = config.retry.wait_s(attempts)
            if attempts == config.retry.attempts or time.monotonic() + wait > deadline:
                raise
            logger.warning(
                'sink "%s" could not finish, next try in %.1f s: %s', name, wait, redact(str(error))
            )
            sleep(wait)
