"""What all queries have in common: one source, its log, its plan, and the batch runner.

A source is cut into batches by the engine itself, each a Spark job of its own (`batched`). Only the logs in
front of the state of a window or fold are read by streaming queries (`signoff.engine.state_queries`).
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from signoff.engine.batch.interrupts import GaveUp, Interrupted, Interrupts
from signoff.engine.batch.letters import LetterStore
from signoff.engine.batch.missing_rows import ways
from signoff.engine.batch.passes import Passes
from signoff.engine.batch.poison_notes import PoisonNotes
from signoff.engine.batch.poison_search import PARTS, Failure, PlanFailed, isolate
from signoff.engine.batch.runner import BatchRunner
from signoff.engine.batch.stage_counts import StageCounts
from signoff.engine.batch.verdict import no_match
from signoff.engine.delivery.open_sinks import SinkEntry
from signoff.engine.plan.compile import compile_source
from signoff.engine.plan.duplicates import Duplicates
from signoff.engine.plan.kept_rows import KeptRows
from signoff.engine.plan.plan import Plan
from signoff.engine.plan.retried_steps import retried_steps
from signoff.engine.spark.failed_tasks import TaskWatch
from signoff.engine.spark.stack_traces import last_line
from signoff.intake.backpressure import Holding
from signoff.intake.trim_limit import ToldUpto
from signoff.ledger.dead_letters import DeadLetters
from signoff.ledger.ledger import Ledger
from signoff.ledger.outcome import Outcome, RowOutcome, RowRef
from signoff.link.handover import HandoverConfig
from signoff.log import LogReader, exclude
from signoff.log.disk_proof import not_shared, prove_shared
from signoff.log.reader import evenly
from signoff.log.spark import read_range
from signoff.pipeline.graph import Graph
from signoff.pipeline.model import OnFailure, SinkConfig, SourceConfig, TransformConfig
from signoff.sinks.contract import BatchRef
from signoff.stateful.window_sinks import STATE, WindowIntake
from signoff.transforms.contract import Transform
from signoff.transforms.functions.black_box import deaths as deaths_noted
from signoff.transforms.route import RouteConfig
from signoff.transforms.window.step import WindowInput

if TYPE_CHECKING:
    from signoff.engine.batch.traces import BatchTraces

logger = logging.getLogger(__name__)

_LOG_EVERY_S = 5.0
"""How often a search says how far it is."""


@dataclass(frozen=True)
class Shared:
    """What all queries of an engine have in common."""

    graph: Graph
    spark: SparkSession
    ledger: Ledger
    letters: DeadLetters
    sinks: Mapping[str, SinkEntry]
    control: Interrupts
    repeats: Duplicates | None = None
    """Where a step of the part knows events again."""


class SourceQuery(ABC):
    """One source's query. `start` may be called again after it failed."""

    def __init__(self, shared: Shared, source: str) -> None:
        self.shared, self.source = shared, source
        graph = shared.graph
        self.log_directory = graph.state / "log" / source
        self.log = LogReader(self.log_directory)
        config = graph.nodes[source].config
        assert isinstance(config, SourceConfig)
        self.config = config
        self.searching = ""
        """How far the search for the rows that a plan fails on is, while there is one."""
        self._logged_at = 0.0
        self.ended: Interrupted | GaveUp | None = None
        """Set when the run ended a batch on purpose."""
        self.needed_elsewhere: list[Callable[[], int]] = []
        """What else the log is read for: each says from where on."""
        self._error = ""
        """Why the last batch failed, if it did."""
        self._tidied = 0
        self._told = ToldUpto(graph.state / "intake" / source)
        self.holding = Holding(source, logger)
        # A session of its own, as Spark gives to a stream: settings made for one batch are no other's.
        self.spark = SparkSession(shared.spark.sparkContext, shared.spark._jsparkSession.cloneSession())
        reachable = graph.downstream(source)
        uniting = uniting_steps(graph) & reachable
        self._letters = LetterStore(source, shared.letters, self.log)
        passes = Passes(
            source=source,
            spark=self.spark,
            state=graph.state,
            log=self.log_directory,
            sinks={name: entry for name, entry in shared.sinks.items() if name in reachable},
            control=shared.control,
            range_plan=self.range_plan,
            steps=retried_steps(graph),
            isolate=self._isolate,
            windows=windows_at(graph, source, shared.sinks),
            unites=bool(uniting),
            before_uniting=frozenset(n for n in reachable if ({n} | graph.downstream(n)) & uniting),
        )
        self.runner = BatchRunner(
            passes,
            policies=stage_policies(graph, source),
            stage_counts=StageCounts(source, drop_reasons(graph)),
            fail_fast=config.on_refusal == "fail_fast",
            links={
                name: source in entry.config.awaited_by
                for name, entry in shared.sinks.items()
                if isinstance(entry.config, HandoverConfig)
            },
            ledger=shared.ledger,
            letters=self._letters,
            ways=ways(graph),
            repeats=shared.repeats,
            traces=self._traces(),
        )

    def _traces(self) -> BatchTraces | None:
        """What makes spans of the batches; None where nobody wants any: then nothing is loaded for it."""
        graph = self.shared.graph
        if (settings := graph.settings.traces) is None:
            return None
        from signoff.engine.batch.traces import traces_of

        reached = graph.downstream(self.source)
        sinks = {name: entry.config for name, entry in self.shared.sinks.items() if name in reached}
        return traces_of(settings, graph.name, self.source, self.config, sinks, LogReader(self.log_directory))

    @abstractmethod
    def start(self) -> None:
        """Start where the ledger says it stands."""

    @abstractmethod
    def failure(self) -> str | None:
        """Why the query is not running; None while it is. Also raises when Spark itself is gone."""

    @abstractmethod
    def stop(self) -> None:
        """End it, also in the middle of a batch."""

    @abstractmethod
    def why_held(self) -> str:
        """Why new batches do not begin although events wait; '' when they do."""

    @abstractmethod
    def finished_upto(self) -> int:
        """Nobody will read again what is below."""

    def look_again(self, start: int) -> None:
        """Something of the batch that begins there was settled elsewhere."""

    def comes_again(self, batch: BatchRef) -> bool:
        """Whether a batch that is recorded may be done again all the same."""
        return False

    def tidy(self) -> None:
        """Remove from the log what is settled and will not be read again.

        Not left to the next batch: a log that is full takes nothing new, and none would come.
        """
        self.runner.stage_counts.log()
        if self.shared.repeats is not None:
            self.shared.repeats.tidy(
                self.source, None if self.idle else self.shared.ledger.needed_from(self.source)
            )
        done = min([self.finished_upto(), *(needed() for needed in self.needed_elsewhere)])
        # Where events must be recognised it also depends on the size of the log, and on the source.
        if done > self._tidied or self.config.remembered_events:
            self._told.trim(self.log_directory, done, self.config)
            self._tidied = done

    @property
    def idle(self) -> bool:
        """Everything that is in the log is settled."""
        return self.shared.ledger.settled_upto(self.source) >= self.log.head()

    def range_plan(
        self, start: int, end: int, sinks: set[str] | None, events: frozenset[int] | None = None
    ) -> Plan:
        """The plan over a fixed range, or over some events of it."""
        others = frozenset[int]() if events is None else frozenset(range(start, end)) - events
        return self._compile(self._range(start, end, others), sinks)

    def _compile(
        self,
        rows: DataFrame,
        sinks: set[str] | None = None,
        *,
        trial: bool = False,
        black_box: Path | None = None,
    ) -> Plan:
        plan = compile_source(
            self.shared.graph,
            self.source,
            rows,
            sinks=sinks,
            counts=sinks is None and not trial,
            trial=trial,
            black_box=black_box,
            kept=None if trial else KeptRows(self.shared.graph.state, self.most_tasks),
        )
        assert plan is not None
        return plan

    def _range(
        self, start: int, end: int, without: frozenset[int] = frozenset(), parts: int | None = None
    ) -> DataFrame:
        return read_range(
            self.spark,
            self.log_directory,
            start,
            end,
            encoding=self.config.encoding,
            without=without,
            parts=parts or self.most_tasks,
            stamps=self.runner.passes.stamps_at(start),
        )

    @property
    def _calls_functions(self) -> bool:
        """Whether a step calls a user's function with one event after the other."""
        reached = self.shared.graph.downstream(self.source)
        steps = [node.config for name, node in self.shared.graph.transforms.items() if name in reached]
        return any(isinstance(step, Transform) and step.calls_each_row for step in steps)

    @property
    def most_tasks(self) -> int | None:
        """One where the order of rows matters: what several tasks write comes in any order, and of two events
        with the same key the one that came first is to be the first. One, too, where a sink has a pace."""
        behind = self.shared.graph.downstream(self.source)
        paced = any(entry.config.rows_at_a_time for entry in self.runner.sinks.values())
        return 1 if paced or self.runner.ordered or any(map(self.runner.follows, behind)) else None

    def _isolate(self, start: int, end: int) -> None:
        """Find poison, store it as dead letters, and withhold it from every later reading of the log."""

        def probe(low: int, high: int, without: frozenset[int]) -> Failure | None:
            shares = evenly(low, high, PARTS)
            with TaskWatch(self.spark.sparkContext) as watch:
                try:
                    touch(self._compile(self._range(low, high, without, parts=PARTS), trial=True).df)
                except Exception as error:  # every failure is an answer here
                    if self.shared.control.overdue or self.runner.passes.halt.is_set():
                        raise Interrupted from error
                    if (said := not_shared(error)) is not None:
                        raise PlanFailed(said) from error
                    return Failure(last_line(error), watch.failed_share(shares))
            return None

        def deaths(low: int, high: int, without: frozenset[int]) -> Mapping[int, str]:
            state, name = self.shared.graph.state, f"trial.{self.source}."
            for left in state.glob(f"{name}*"):  # by a search that was killed
                shutil.rmtree(left, ignore_errors=True)
            with tempfile.TemporaryDirectory(prefix=name, dir=state) as directory:
                rows = self._range(low, high, without, parts=PARTS)
                try:
                    touch(self._compile(rows, trial=True, black_box=Path(directory)).df)
                except Exception as error:
                    if self.shared.control.overdue or self.runner.passes.halt.is_set():
                        raise Interrupted from error
                    logger.debug("the search for events that end their worker: %s", last_line(error))
                found = deaths_noted(Path(directory))
            return {n: f'the function of "{step}" ends its worker with it' for n, step in found.items()}

        def progress(events: int, found: int) -> None:
            text = f"isolating bad rows, {events} of {end - start} left to look at, {found} found"
            if not self.searching:
                logger.warning("%s", text)
                self._logged_at = time.monotonic()
            elif time.monotonic() - self._logged_at > _LOG_EVERY_S:
                logger.info("%s", text)
                self._logged_at = time.monotonic()
            self.searching = text

        notes = PoisonNotes(self.shared.graph.state / "suspects" / f"{self.source}.json")
        try:
            culprits = isolate(
                probe,
                start,
                end,
                together=self.runner.passes.unites,
                deaths=deaths if self._calls_functions else None,
                notes=notes,
                progress=progress,
            )
        finally:
            self.searching = ""
        outcomes = [
            RowOutcome(
                RowRef(sequence), self.source, Outcome.DEAD_LETTERED, f"the plan fails on it: {reason}"
            )
            for sequence, reason in culprits.items()
        ]
        self._letters.store(outcomes, self.shared.control)
        exclude(self.log_directory, culprits)
        notes.forget()


def touch(df: DataFrame) -> None:
    """Run a plan without any effect."""
    if not df.sparkSession.sparkContext.master.startswith("local"):
        df = df.mapInArrow(_proved, df.schema)
    df.write.format("noop").mode("overwrite").save()


def _proved(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    prove_shared()
    return rows


def windows_at(graph: Graph, source: str, sinks: Mapping[str, SinkEntry]) -> dict[str, WindowIntake]:
    """The windows that rows of a source come to, by name."""
    names = [node.name for node in graph.transforms.values() if isinstance(node.config, WindowInput)]
    reached = graph.downstream(source)
    intakes = {name: sinks[name + STATE].sink for name in names if name in reached and name + STATE in sinks}
    return {name: sink for name, sink in intakes.items() if isinstance(sink, WindowIntake)}


def drop_reasons(graph: Graph) -> dict[str, str]:
    """Why rows end at a step without an error, by the step's name."""
    configs = {name: node.config for name, node in graph.transforms.items()}
    return {name: config.drops for name, config in configs.items() if isinstance(config, Transform)}


def uniting_steps(graph: Graph) -> set[str]:
    """The steps that make one row of several events."""
    configs = {name: node.config for name, node in graph.transforms.items()}
    return {name for name, step in configs.items() if isinstance(step, Transform) and step.unites}


def stage_policies(graph: Graph, source: str) -> dict[str, OnFailure]:
    """What becomes of a row for which a step fails, by the step's name."""
    policies: dict[str, OnFailure] = {source: "dead_letter"}
    for name, node in graph.transforms.items():
        config = node.config
        assert isinstance(config, TransformConfig)
        policies[name] = config.on_error
        if isinstance(config, RouteConfig):
            policies[no_match(name)] = config.no_match
    for name, node in graph.sinks.items():
        assert isinstance(node.config, SinkConfig)
        if node.config.expressions():
            policies[name] = node.config.on_failure
    return policies
