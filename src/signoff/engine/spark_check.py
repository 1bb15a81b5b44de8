"""What only Spark can say of a pipeline: do the expressions resolve, fit their types, keep the lineage?

Each source's graph is compiled over an empty DataFrame of the right schema; Spark's analyser does the
rest. Nothing is read and nothing is written.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from signoff.engine.parts import graphs, no_events
from signoff.engine.plan.compile import compile_source
from signoff.engine.spark.session import JAVA_OPTIONS, SHORT_LIVED, start_session
from signoff.engine.split.division import all_boundaries, divide
from signoff.engine.state_queries.removed_steps import check_left
from signoff.errors import PipelineError, Problem
from signoff.pipeline.graph import Graph
from signoff.pipeline.model import SinkConfig


def check(graph: Graph, spark: SparkSession | None = None) -> list[Problem]:
    """Every problem Spark finds, in the order of the file; each once, also when two sources share a node."""
    if spark is not None:
        return _check(graph, spark)
    if not asks_spark(graph):
        return _without_spark(graph)
    with checking_session(graph) as session:
        return _check(graph, session)


@contextmanager
def checking_session(graph: Graph) -> Iterator[SparkSession]:
    """A session that is only asked, and never given anything to do."""
    given = graph.settings.spark
    options = {**given.config, JAVA_OPTIONS: f"{SHORT_LIVED} {given.config.get(JAVA_OPTIONS, '')}".strip()}
    with tempfile.TemporaryDirectory(prefix="signoff-check-") as directory:
        session = start_session(
            graph.name,
            given.model_copy(update={"master": "local[1]", "config": options}),
            log_file=Path(directory) / "spark.log",
            python_path=graph.base,
        )
        try:
            yield session
        finally:
            session.stop()


def asks_spark(graph: Graph) -> bool:
    """Whether there is anything that only Spark can say: an expression, a schema, a function."""
    try:
        divided = bool(all_boundaries(graph))
    except PipelineError:
        divided = False  # said without Spark
    computes = any(
        isinstance(node.config, SinkConfig) and (node.config.expressions() or len(node.inputs) > 1)
        for node in graph.sinks.values()
    )
    return bool(graph.transforms) or divided or computes


def _without_spark(graph: Graph) -> list[Problem]:
    try:
        all_boundaries(graph)
        check_left(graph)
    except PipelineError as error:
        return sorted(error.problems, key=lambda problem: problem.line)
    return []


def _check(graph: Graph, spark: SparkSession) -> list[Problem]:
    problems: dict[Problem, None] = {}
    for name in graph.sources:
        empty = no_events(graph, name, spark)
        compile_source(graph, name, empty, problem=lambda p: problems.setdefault(p))
    if not problems:
        try:
            all_boundaries(graph)
            check_left(graph)
            graphs(divide(graph), spark)
        except PipelineError as error:
            problems |= dict.fromkeys(error.problems)
    return sorted(problems, key=lambda problem: problem.line)
