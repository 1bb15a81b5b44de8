"""All tables of a job as they are at one moment, as DataFrames that executors read.

Invariant: however many tasks read a table, and however often Spark reads it for one query, they see the same
rows; tables of one database, the same moment. While the context lasts, nothing that others do to the tables
changes what is read; where that cannot be had, the context ends with TableUnreadable.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from signoff.errors import SignoffError
from signoff.jobs.spark_failures import SPARK_FAILURES, reason_of
from signoff.pipeline.graph import Graph
from signoff.pipeline.job_settings import Value
from signoff.sources.table import TableConfig

_READ = "signoff_read_"
"""Begins the name under which Spark counts the rows of a table while they are read."""


class TableUnreadable(SignoffError):
    """A table cannot be read now; the text says which and why, without secrets."""


@dataclass(frozen=True)
class Table:
    """One table of the snapshot."""

    df: DataFrame
    complete_to: str | None
    rows: int | None = None
    """How many there are, where that is known before they are read."""


@dataclass(frozen=True)
class Wanted:
    """What is to be read of one table."""

    name: str
    config: TableConfig
    schema: StructType | None
    """As the user gave it."""
    parts: int


@contextmanager
def open_tables(
    spark: SparkSession,
    graph: Graph,
    values: Mapping[str, Value],
    directory: Path,
) -> Iterator[dict[str, Table]]:
    """The tables, by name. `directory`: for what a snapshot needs on disk, removed by the caller."""
    base = graph.base
    wanted = [wanted_of(spark, name, config) for name, config in tables_of(graph).items()]
    found: dict[str, Table] = {}
    with ExitStack() as stack:
        for path in dict.fromkeys(
            base / w.config.path for w in wanted if w.config.store == "sqlite" and w.config.path
        ):
            from signoff.jobs import sqlite_table

            some = [w for w in wanted if w.config.store == "sqlite" and base / str(w.config.path) == path]
            found |= sqlite_table.snapshot(spark, path, some, values, directory)
        for url in dict.fromkeys(w.config.url for w in wanted if w.config.url is not None):
            from signoff.jobs import postgres_table

            some = [w for w in wanted if w.config.url == url]
            found |= stack.enter_context(postgres_table.snapshot(spark, url, some, values))
        for one in (w for w in wanted if w.config.store == "parquet"):
            from signoff.jobs import parquet_table

            found[one.name] = stack.enter_context(
                parquet_table.snapshot(spark, base, one, values, graph.settings.parameters, directory)
            )
        yield {one.name: _counted(one.name, found[one.name]) for one in wanted}


def tables_of(graph: Graph) -> dict[str, TableConfig]:
    """The tables of a job, by name."""
    return {name: node.config for name, node in graph.nodes.items() if isinstance(node.config, TableConfig)}


def wanted_of(spark: SparkSession, name: str, config: TableConfig) -> Wanted:
    try:
        schema = None if config.schema_ is None else StructType.fromDDL(config.schema_)
    except SPARK_FAILURES as error:
        raise TableUnreadable(f'table "{name}" has a schema that is none: {reason_of(error)}') from None
    return Wanted(name, config, schema, config.partitions or 2 * spark.sparkContext.defaultParallelism)


def _counted(name: str, table: Table) -> Table:
    """Spark counts the rows in passing. Each reading of a table counts all of it, so any of them says it."""
    return Table(
        table.df.observe(_READ + name, F.count(F.lit(1)).alias("rows")), table.complete_to, table.rows
    )


def rows_read(df: DataFrame) -> dict[str, int]:
    """By table, how many rows the job of this DataFrame has read that was just done."""
    found: dict[str, int] = {}
    metrics = df._jdf.queryExecution().observedMetrics().iterator()
    while metrics.hasNext():
        entry = metrics.next()
        if str(entry._1()).startswith(_READ):
            found[str(entry._1()).removeprefix(_READ)] = int(entry._2().getLong(0))
    return found


def typed(df: DataFrame, schema: StructType) -> DataFrame:
    """With the types of a schema. A value that is none of its type fails the run: nothing becomes null."""
    return df.select(*(F.col(f"`{field.name}`").cast(field.dataType).alias(field.name) for field in schema))
