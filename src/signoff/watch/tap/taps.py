"""`Tap`: the newest rows at a node, and then those that come, for as long as somebody looks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Self

from pyspark.sql import SparkSession

from signoff.engine.spark_check import checking_session
from signoff.log import LogReader
from signoff.pipeline.graph import Graph
from signoff.pipeline.model import SourceConfig
from signoff.watch.tap.place import places_of, ports_of
from signoff.watch.tap.plan import check_where, rows_between
from signoff.watch.tap.ranges import Ranges
from signoff.watch.tap.rows import TappedRow, shown, with_states

LIMIT = 20
_Take = Callable[[int], list[TappedRow]]


def tap(
    graph: Graph,
    node: str,
    *,
    where: str | None = None,
    limit: int = LIMIT,
    calls: bool = False,
    spark: SparkSession | None = None,
) -> list[TappedRow]:
    """The newest rows at a node, oldest first: what came out of a source or a transform (`name`, or
    `name.output`), or what comes to a sink. Changes nothing, whether a run goes on or not.

    `where`: Spark SQL over the columns there; without it rows that the node did not pass are shown as well.
    `calls`: also behind steps that run functions or ask services, which are called once more, for as many
    events as rows are wanted. `spark`: the session to use; without it one is started and stopped, which takes
    seconds, except for a source without `where`, which needs none. Raises PipelineError for a wrong name or
    condition, and where rows cannot be told; EngineError where they cannot be computed.
    """
    with Tap(graph, node, where=where, calls=calls, spark=spark) as tapped:
        return tapped.take(limit)


class Tap:
    """A tap that stays open: `take` as often as wanted, by one thread."""

    def __init__(
        self,
        graph: Graph,
        node: str,
        *,
        where: str | None = None,
        calls: bool = False,
        spark: SparkSession | None = None,
    ) -> None:
        self._graph, self._node, self._where, self._calls = graph, node, where, calls
        ports_of(graph, node)  # before anything is started
        self._spark, self._stack = spark, ExitStack()
        self._inputs: list[_Take] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def take(self, limit: int = LIMIT) -> list[TappedRow]:
        """At first the newest rows of which the log still has the events; then those of events that came
        since the last call, the newest if there are more."""
        if not self._inputs:
            self._inputs = [self._events()] if self._needs_no_spark else list(self._computed())
        found = [row for take in self._inputs for row in take(limit)]
        told = with_states(self._graph, self._node.partition(".")[0], found)
        return told if len(self._inputs) == 1 else sorted(told, key=lambda row: row.received_at)[-limit:]

    @property
    def _needs_no_spark(self) -> bool:
        """Of a source whose events are shown as they came."""
        config = self._graph.nodes[self._node].config if self._node in self._graph.nodes else None
        return isinstance(config, SourceConfig) and config.typed_rows is None and self._where is None

    def _events(self) -> _Take:
        log, ranges = LogReader(self._graph.state / "log" / self._node), Ranges(self._graph.state, self._node)

        def rows(limit: int, start: int, end: int) -> list[TappedRow]:
            found = log.lookup(range(max(start, end - limit), end))
            columns = ("payload", "headers", "message_id")
            return [
                TappedRow(f"{self._node}/{n}", "passed", row=shown({name: event[name] for name in columns}))
                for n, event in found.items()
            ]

        return lambda limit: ranges.take(partial(rows, limit), limit)

    def _computed(self) -> Iterator[_Take]:
        if self._spark is None:
            self._spark = self._stack.enter_context(checking_session(self._graph))
        for place in places_of(self._graph, self._node, self._spark, calls=self._calls):
            for source in place.sources:
                if self._where is not None:
                    check_where(self._spark, place, source, self._where)
                ranges = Ranges(place.part.state, source, few=self._calls, whole_batches=place.unites)
                between = partial(rows_between, self._spark, place, source, self._where)
                yield partial(_take, ranges, between)


def _take(ranges: Ranges, between: Callable[[int, int, int], list[TappedRow]], limit: int) -> list[TappedRow]:
    return ranges.take(partial(between, limit), limit)
