"""The Spark query of one source: from its log, through the plan, into the batch runner.

Spark decides the ranges and calls `_batch` for each, again and with the same range after a crash.
The range comes from Spark's write-ahead log, not from the batch id, which only names the file.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from signoff.engine.batch import BatchRunner, SinkEntry, touch
from signoff.engine.checkpoint import Checkpoint
from signoff.engine.compile import Plan, compile_source
from signoff.engine.control import Control, GaveUp, Interrupted
from signoff.engine.letters import LetterStore
from signoff.engine.poison import isolate, last_line
from signoff.errors import EngineError
from signoff.ledger.dead_letters import DeadLetters
from signoff.ledger.ledger import Ledger
from signoff.ledger.outcome import Outcome, RowOutcome, RowRef
from signoff.log import LogReader, exclude, trim
from signoff.log.spark import read_range
from signoff.pipeline.graph import Graph
from signoff.pipeline.model import OnFailure, SourceConfig, TransformConfig
from signoff.sinks.contract import BatchRef

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Shared:
    """What all queries of an engine have in common."""

    graph: Graph
    spark: SparkSession
    ledger: Ledger
    letters: DeadLetters
    sinks: Mapping[str, SinkEntry]
    control: Control


class SourceQuery:
    """One source's query. `start` may be called again after it failed."""

    def __init__(self, shared: Shared, source: str) -> None:
        self.shared, self.source = shared, source
        graph = shared.graph
        self.log_directory = graph.state / "log" / source
        self.log = LogReader(self.log_directory)
        self.checkpoint = Checkpoint(graph, source)
        config = graph.nodes[source].config
        assert isinstance(config, SourceConfig)
        self.config = config
        self.ended: Interrupted | GaveUp | None = None
        """Set when the run ended a batch on purpose."""
        self._first = 0
        self._error = ""
        """Why the last batch failed, if it did."""
        self._tidied = 0
        self._query: StreamingQuery | None = None
        self._plan: Plan | None = None
        reachable = graph.downstream(source)
        self._letters = LetterStore(source, shared.letters, self.log)
        self.runner = BatchRunner(
            source=source,
            state=graph.state,
            log=self.log_directory,
            sinks={name: entry for name, entry in shared.sinks.items() if name in reachable},
            policies=stage_policies(graph, source),
            ledger=shared.ledger,
            letters=self._letters,
            control=shared.control,
            range_plan=self.range_plan,
            isolate=self._isolate,
        )

    def start(self) -> None:
        """Start the query where the ledger and the checkpoint say it stands."""
        self._error = ""
        self.log_directory.mkdir(parents=True, exist_ok=True)
        self.checkpoint.mend(self.shared.ledger.books(self.source).next)
        if not self.checkpoint.exists():
            try:
                self._finish_open()
            except (Interrupted, GaveUp) as ended:
                self.ended = ended
                return
            self.checkpoint.begin(self.shared.ledger.needed_from(self.source))
        first = self.checkpoint.first
        self._first = self.shared.ledger.needed_from(self.source) if first is None else first
        stream = (
            self.shared.spark.readStream.format("signoff")
            .options(
                path=str(self.log_directory),
                encoding=self.config.encoding,
                startingSequence=str(self._first),
                maxEventsPerBatch=str(self.config.max_events_per_batch),
                maxBytesPerBatch=str(self.config.max_bytes_per_batch),
                parallelism=str(self.shared.spark.sparkContext.defaultParallelism),
            )
            .load()
        )
        plan = compile_source(self.shared.graph, self.source, stream, streaming=True)
        assert plan is not None
        self._plan = plan
        self._query = (
            plan.df.writeStream.foreachBatch(self._batch)
            .queryName(self.source)
            .option("checkpointLocation", str(self.checkpoint.path))
            .start()
        )

    def failure(self) -> str | None:
        """Why the query is not running; None while it is. Also raises when Spark itself is gone."""
        if self._query is None:
            return "not started"
        if self._query.isActive:
            return None
        error = self._query.exception()
        return self._error or (last_line(error) if error is not None else "stopped")

    def stop(self) -> None:
        if self._query is not None:
            self._query.stop()

    def tidy(self) -> None:
        """Remove from the log what is settled and committed.

        Not left to the next batch: a log that is full takes nothing new, and none would come.
        """
        done = min(self.checkpoint.committed(), self.shared.ledger.needed_from(self.source))
        spare = self.config.remembered_events
        if done > self._tidied or spare:  # with spare events it also depends on the size of the log
            trim(self.log_directory, done, spare=spare, room_bytes=self.config.log.max_bytes // 2)
            self._tidied = done

    @property
    def idle(self) -> bool:
        """Everything that is in the log is settled."""
        return self.shared.ledger.settled_upto(self.source) >= self.log.head()

    def range_plan(self, start: int, end: int, sinks: set[str] | None) -> Plan:
        """The same plan over a fixed range."""
        plan = compile_source(
            self.shared.graph, self.source, self._range(start, end), streaming=False, sinks=sinks
        )
        assert plan is not None
        return plan

    def _range(self, start: int, end: int, without: frozenset[int] = frozenset()) -> DataFrame:
        return read_range(
            self.shared.spark,
            self.log_directory,
            start,
            end,
            encoding=self.config.encoding,
            without=without,
        )

    def _batch(self, df: DataFrame, batch_id: int) -> None:
        """Called by Spark for each micro-batch, in a thread of its own.

        What is raised here ends the query. Spark matches the whole traceback against a pattern that
        overflows its stack on a long one, so the exception it gets is short; the rest is kept here.
        """
        try:
            self._do_batch(df, batch_id)
        except (Interrupted, GaveUp) as ended:
            self.ended = ended
        except Exception as error:  # told to whoever looks after the query
            logger.debug("batch %d failed", batch_id, exc_info=True)
            self._error = last_line(error)
        else:
            return
        raise EngineError("the batch was not finished")

    def _do_batch(self, df: DataFrame, batch_id: int) -> None:
        assert self._plan is not None
        batch = self._batch_ref(batch_id)
        plan = replace(self._plan, df=df)
        if batch.start >= batch.end:
            if plan.stateful:
                touch(df)
            return
        self.runner.run(batch, plan)

    def _batch_ref(self, batch_id: int) -> BatchRef:
        end = self.checkpoint.end_of(batch_id)
        start = self.checkpoint.end_of(batch_id - 1) if batch_id else self._first
        if end is None or start is None:
            raise EngineError(f"Spark's offset log {self.checkpoint.path}/offsets lacks batch {batch_id}")
        return BatchRef(self.source, start, end)

    def _finish_open(self) -> None:
        """Without a checkpoint nobody will bring an open batch again: do it now."""
        for open_batch in self.shared.ledger.open_batches(self.source):
            ref = open_batch.ref
            self.runner.run(BatchRef(ref.source, ref.start, ref.end), None)

    def _isolate(self, start: int, end: int) -> None:
        """Find poison, store it as dead letters, and withhold it from every later reading of the log."""

        def probe(low: int, high: int, without: frozenset[int]) -> str | None:
            try:
                rows = self._range(low, high, without)
                plan = compile_source(self.shared.graph, self.source, rows, streaming=False)
                assert plan is not None
                touch(plan.df)
            except Exception as error:  # every failure is an answer here
                if self.shared.control.overdue:
                    raise Interrupted from error
                return last_line(error)
            return None

        culprits = isolate(probe, start, end)
        outcomes = [
            RowOutcome(
                RowRef(sequence), self.source, Outcome.DEAD_LETTERED, f"the plan fails on it: {reason}"
            )
            for sequence, reason in culprits.items()
        ]
        self._letters.store(outcomes, self.shared.control)
        exclude(self.log_directory, culprits)


def stage_policies(graph: Graph, source: str) -> dict[str, OnFailure]:
    """What becomes of a row for which a step fails, by the step's name."""
    policies: dict[str, OnFailure] = {source: "dead_letter"}
    for name, node in graph.transforms.items():
        config = node.config
        assert isinstance(config, TransformConfig)
        policies[name] = getattr(config, "no_match", config.on_error)
    return policies
