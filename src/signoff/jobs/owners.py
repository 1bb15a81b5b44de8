"""No sink takes the rows of this job for those of another.

Who owns what is asked before anything is computed, and noted before the first row is delivered. A run that is
refused, or has no rows, notes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Set

from signoff.errors import SignoffError, SinkError
from signoff.installed_types import build
from signoff.jobs.records import Record
from signoff.pipeline.graph import Graph
from signoff.pipeline.model import SinkConfig
from signoff.pipeline.secrets import redact
from signoff.sinks.contract import Sink
from signoff.sinks.owners import OthersRows

logger = logging.getLogger(__name__)


def refuse_others(half: Graph) -> None:
    """Raises SignoffError if rows of this job would be taken for another's, as far as that is known."""

    def cannot_say(name: str, error: SinkError) -> None:
        logger.info('sink "%s" does not say whose its rows are: %s', name, redact(str(error)))

    _ask(half, lambda sink, sources: sink.refuse_others(half.name, sources), frozenset(), cannot_say)


def claim(half: Graph, record: Record) -> None:
    """The rows of this run are accepted. Raises SignoffError, as above."""

    def waits(name: str, error: SinkError) -> None:  # it is down, or may not: the rows are kept
        logger.warning('sink "%s" has not noted whose its rows are: %s', name, redact(str(error)))

    empty = {name for name, output in record.outputs.items() if not output.rows}
    _ask(half, lambda sink, sources: sink.claim(half.name, sources), empty, waits)


def _ask(
    half: Graph,
    ask: Callable[[Sink, Set[str]], None],
    without: Set[str],
    otherwise: Callable[[str, SinkError], None],
) -> None:
    for name, node in half.sinks.items():
        assert isinstance(node.config, SinkConfig)
        sources = half.upstream_sources(name) - without
        if not sources:
            continue
        sink: Sink = build(node.config, half.base)
        try:
            ask(sink, sources)
        except OthersRows as error:
            raise SignoffError(f'sink "{name}": {redact(str(error))}') from error
        except SinkError as error:
            otherwise(name, error)
        finally:
            sink.release()
