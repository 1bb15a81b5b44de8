"""What only Spark can say of a job: do its queries resolve, and what stands behind them?

Every query is analysed over empty tables of the right columns, and the second half is checked as any pipeline
is. No table is read. Which columns one has is known from its `schema`, or from a file that is there; no
server is asked.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from signoff.engine.spark_check import check as check_pipeline
from signoff.engine.spark_check import checking_session
from signoff.errors import Problem
from signoff.jobs.compute import QueryFailed, batch_session, queries
from signoff.jobs.outputs import output_names, second_half
from signoff.jobs.tables import TableUnreadable, tables_of, wanted_of
from signoff.pipeline.graph import Graph
from signoff.pipeline.job_settings import Value, read_value
from signoff.sources.table import TableConfig


def check(graph: Graph, spark: SparkSession | None = None) -> tuple[Graph, list[Problem]]:
    """The job, with a warning for each table whose columns are not known, and every problem Spark finds."""
    if spark is None:
        with checking_session(graph) as session:
            return check(graph, session)
    problems: list[Problem] = []
    unknown: list[Problem] = []
    schemas: dict[str, StructType] = {}
    for name, config in tables_of(graph).items():
        node = graph.nodes[name]
        try:
            schemas[name] = columns_of(graph, spark, name, config)
        except TableUnreadable as error:
            hint = "give it a `schema` to have what reads it checked"
            unknown.append(Problem("unknown-table", str(error), hint, node.file or graph.file, node.line))
        except (ValueError, PySparkException) as error:
            text = str(error).splitlines()[0]
            problems.append(node.problem("bad-value", f"has a schema that is none: {text}", at="schema"))
    graph = replace(graph, warnings=(*graph.warnings, *unknown))
    if not unknown and not problems:
        problems = _check_queries(graph, spark, schemas)
    return graph, problems


def columns_of(graph: Graph, spark: SparkSession, name: str, config: TableConfig) -> StructType:
    """The columns of a table, without reading it. Raises TableUnreadable where they are not known."""
    from signoff.jobs import parquet_table, sqlite_table

    if config.schema_ is not None:
        return StructType.fromDDL(config.schema_)
    wanted, path = wanted_of(spark, name, config), graph.base / str(config.path)
    if config.store == "parquet" and (files := parquet_table.files_of(path)):
        return parquet_table.read(spark, wanted, path, files).schema
    if config.store == "sqlite" and path.is_file():
        try:
            with closing(sqlite3.connect(":memory:", uri=True)) as connection:
                connection.execute("ATTACH ? AS source", (f"{path.resolve().as_uri()}?mode=ro",))
                return sqlite_table.declared(connection, wanted)
        except sqlite3.Error as error:
            raise TableUnreadable(f'table "{name}" in {path}: {error}') from None
    raise TableUnreadable(f'which columns table "{name}" has is not known before it is read')


def _check_queries(graph: Graph, spark: SparkSession, schemas: dict[str, StructType]) -> list[Problem]:
    session = batch_session(graph, spark)
    empty: dict[str, DataFrame] = {name: session.createDataFrame([], kind) for name, kind in schemas.items()}
    values: dict[str, Value] = {
        name: read_value(each.type, each.default) for name, each in graph.settings.parameters.items()
    }
    try:
        frames = queries(graph, session, empty, values)
    except QueryFailed as error:
        name, _, text = str(error).removeprefix('"').partition('": ')
        node = graph.nodes.get(name)
        line = node.line_of("query") if node else 0
        return [Problem("bad-query", f'transform "{name}": {text or error}', "", graph.file, line)]
    columns = {name: frames[name].schema.json() for name in output_names(graph)}
    return check_pipeline(second_half(graph, columns), spark)
