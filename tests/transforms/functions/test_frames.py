"""What a function on DataFrames may do: each row of one row. Spark is asked for plans, and does nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812

from signoff.engine.plan.lineage import Lineage
from signoff.transforms.contract import FieldError
from signoff.transforms.frame import Frame, View
from signoff.transforms.functions.frames import compile_frame

pytestmark = pytest.mark.spark

LINEAGE = "_sequence BIGINT, _child STRING, _received_at TIMESTAMP, alive BOOLEAN"
Function = Callable[[DataFrame], DataFrame]


def compiled(spark: SparkSession, function: Any) -> View:
    """A function's rows, of rows with the columns `k`, `n` and `xs`."""
    frame = Frame(spark.createDataFrame([], f"{LINEAGE}, k STRING, n BIGINT, xs ARRAY<INT>"))
    return compile_frame("made", View(frame, "alive", {"k": "k", "n": "n", "xs": "xs"}), function)


def table(rows: DataFrame) -> DataFrame:
    return rows.sparkSession.createDataFrame([("a", 1)], "k STRING, m INT")


def sql(text: str) -> Function:
    return lambda rows: rows.sparkSession.sql(text, rows=rows, known=table(rows))


def by_view(rows: DataFrame) -> DataFrame:
    rows.createOrReplaceTempView("given")
    return rows.sparkSession.sql("SELECT * FROM given WHERE n > 1")


ROW_BY_ROW: dict[str, Function] = {
    "as it is": lambda rows: rows,
    "columns": lambda rows: rows.select("k", "_origin").withColumn("z", F.upper("k")).drop("k"),
    "condition": lambda rows: rows.where("n > 1").na.drop().na.fill("x"),
    "order": lambda rows: rows.orderBy("n").repartition(2).coalesce(1).sortWithinPartitions("n"),
    "functions": lambda rows: rows.withColumn("u", F.udf(lambda n: n, "long")("n")),
    "time": lambda rows: rows.withColumn("t", F.current_timestamp()).withColumn("d", F.expr("now()")),
    "table, numbered": lambda rows: rows.join(
        table(rows).withColumn("i", F.monotonically_increasing_id()), "k"
    ),
    "arrow": lambda rows: rows.mapInArrow(lambda batches: batches, rows.schema),
    "names": lambda rows: rows.alias("r").where("r.n > 1").select("r.*"),
    "table": lambda rows: rows.join(table(rows), "k"),
    "table, aggregated": lambda rows: rows.join(table(rows).groupBy("k").count(), "k", "left"),
    "table, broadcast": lambda rows: rows.join(F.broadcast(table(rows)), "k", "left_anti"),
    "table first": lambda rows: table(rows).join(rows, "k", "right"),
    "sql": sql("SELECT *, n + 1 AS p FROM {rows} WHERE n > (SELECT max(m) FROM {known})"),
    "sql, named parts": sql("WITH a AS (SELECT * FROM {rows}) SELECT * FROM a WHERE n > 1"),
    "sql, view": by_view,
}


@pytest.mark.parametrize("name", ROW_BY_ROW)
def test_a_function_that_works_row_by_row_is_taken(spark: SparkSession, name: str) -> None:
    assert compiled(spark, ROW_BY_ROW[name]).columns


def numbered(rows: DataFrame) -> DataFrame:
    return rows.withColumn("r", F.row_number().over(Window.partitionBy("k").orderBy("n")))


def first_of_each(rows: DataFrame) -> DataFrame:
    return rows.groupBy("k").agg(F.first("_origin").alias("_origin"), F.count("*"))


def made_anew(rows: DataFrame) -> DataFrame:
    return rows.sparkSession.createDataFrame(rows.rdd.map(lambda row: row), rows.schema)


def with_a_stream(rows: DataFrame) -> DataFrame:
    ticks = rows.sparkSession.readStream.format("rate").load()
    return rows.join(ticks.withColumnRenamed("value", "n"), "n")


REFUSED: dict[str, tuple[Function, str]] = {
    "aggregate": (first_of_each, "aggregates"),
    "window": (numbered, "looks at several rows"),
    "limit": (lambda rows: rows.limit(3), "looks at several rows"),
    "offset": (lambda rows: rows.offset(3), "looks at several rows"),
    "duplicates": (lambda rows: rows.dropDuplicates(["k"]), "drops duplicates"),
    "distinct": (lambda rows: rows.distinct(), "drops duplicates"),
    "stream's duplicates": (
        lambda rows: (
            rows.withColumn("t", F.current_timestamp())
            .withWatermark("t", "1 hour")
            .dropDuplicatesWithinWatermark(["k"])
        ),
        "drops duplicates",
    ),
    "groups": (lambda rows: rows.groupBy("k").applyInPandas(lambda p: p, rows.schema), "looks at several"),
    "explode": (lambda rows: rows.withColumn("x", F.explode("xs")), "several rows of one event"),
    "union": (lambda rows: rows.union(rows), "several rows of one event"),
    "except": (lambda rows: rows.subtract(rows.where("n > 1")), "looks at several rows"),
    "sample": (lambda rows: rows.sample(0.5), "by chance"),
    "random": (lambda rows: rows.where(F.rand() < 0.5), "by chance"),
    "random, then a condition": (
        lambda rows: rows.withColumn("r", F.rand(7)).where("r < 0.5").drop("r"),
        "different value each time",
    ),
    "random order": (lambda rows: rows.orderBy(F.rand()), "different value each time"),
    "random partitions": (lambda rows: rows.repartition(2, F.rand()), "different value each time"),
    "random number": (sql("SELECT *, uniform(1, 6) AS r FROM {rows}"), "different value each time"),
    "random, of a subquery": (sql("SELECT *, (SELECT uuid()) AS r FROM {rows}"), "different value each time"),
    "random, of a named part": (
        sql("WITH a AS (SELECT *, rand() AS r FROM {rows}) SELECT * FROM a WHERE r < 1"),
        "different value each time",
    ),
    "number": (
        lambda rows: rows.withColumn("i", F.monotonically_increasing_id()),
        "different value each time",
    ),
    "uuid": (lambda rows: rows.withColumn("i", F.expr("uuid()")), "different value each time"),
    "partition": (lambda rows: rows.select("*", F.spark_partition_id()), "different value each time"),
    "file": (lambda rows: rows.withColumn("f", F.input_file_name()), "different value each time"),
    "non-deterministic function": (
        lambda rows: rows.withColumn("u", F.udf(lambda n: n, "long").asNondeterministic()("n")),
        "different value each time",
    ),
    "non-deterministic function, then a condition": (
        lambda rows: rows.where(F.upper(F.udf(lambda k: k).asNondeterministic()("k")) == "A"),
        "by chance",
    ),
    "itself": (lambda rows: rows.join(rows.select("k"), "k"), "with one another"),
    "all of a table": (lambda rows: rows.join(table(rows), "k", "full"), "adds rows of a table"),
    "subquery": (
        sql("SELECT * FROM {rows} WHERE n IN (SELECT n + 1 FROM {rows})"),
        "looks at several rows",
    ),
    "named part, twice": (
        sql("WITH a AS (SELECT * FROM {rows}) SELECT x.* FROM a x JOIN a y ON x.k = y.k"),
        "with one another",
    ),
    "table alone": (lambda rows: table(rows).withColumn("_origin", F.lit(None)), "not return what is made"),
    "rdd": (made_anew, "not return what is made"),
    "checkpoint": (lambda rows: rows.localCheckpoint(eager=False), "keeps a copy"),
    "stream": (with_a_stream, "reads a stream"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_function_that_does_more_is_refused_with_what_it_does_and_what_to_use(
    spark: SparkSession, name: str
) -> None:
    function, does = REFUSED[name]
    with pytest.raises(FieldError) as refused:
        compiled(spark, function)
    error = refused.value
    assert (error.code, error.field) == ("not-row-by-row", "function"), error
    assert does in str(error) and error.hint


@pytest.fixture
def uncached(spark: SparkSession) -> Iterator[SparkSession]:
    yield spark
    spark.catalog.clearCache()


def test_rows_that_are_cached_would_be_those_of_the_first_batch_and_are_refused(
    uncached: SparkSession,
) -> None:
    with pytest.raises(FieldError, match="keeps a copy"):
        compiled(uncached, lambda rows: rows.where("n > 1").cache().withColumn("z", F.lit(1)))
    assert compiled(uncached, lambda rows: rows.join(table(rows).cache(), "k")), "a table may be"


def test_what_is_no_dataframe_or_has_lost_the_origins_is_refused(spark: SparkSession) -> None:
    with pytest.raises(FieldError) as refused:
        compiled(spark, lambda rows: [])
    assert refused.value.code == "bad-function"
    with pytest.raises(FieldError) as refused:
        compiled(spark, lambda rows: rows.groupBy("k").count())
    assert refused.value.code == "lost-origins"


def origin(value: str) -> Function:
    return lambda rows: rows.withColumn("_origin", F.expr(value))


KEPT: dict[str, Function] = {
    "other name and back": lambda rows: (
        rows.withColumnRenamed("_origin", "o").where("n > 1").withColumnRenamed("o", "_origin")
    ),
    "copy": lambda rows: rows.withColumn("o", F.col("_origin")).select("k", F.col("o").alias("_origin")),
    "named part": sql("WITH a AS (SELECT _origin AS o, k FROM {rows}) SELECT k, o AS _origin FROM a"),
    "view": by_view,
    "table first": lambda rows: table(rows).join(rows, "k", "right").select("m", "_origin"),
    "arrow, from where it cannot be followed": lambda rows: (
        rows.mapInArrow(lambda batches: batches, rows.schema)
        .withColumnRenamed("_origin", "o")
        .toDF(*rows.columns)
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_the_origins_are_known_again_under_any_name_they_had(spark: SparkSession, name: str) -> None:
    assert compiled(spark, KEPT[name]).columns


SOME_ORIGIN = "named_struct('_sequence', 0L, '_child', '', '_received_at', now())"
OVERWRITTEN: dict[str, Function] = {
    "null": lambda rows: rows.withColumn("_origin", F.lit(None).cast(rows.schema["_origin"].dataType)),
    "another number": origin(SOME_ORIGIN),
    "some of them": origin("if(n > 1, _origin, NULL)"),
    "a table's": lambda rows: rows.drop("_origin").crossJoin(
        table(rows).selectExpr(f"{SOME_ORIGIN} AS _origin")
    ),
    "a table's, through arrow": lambda rows: rows.drop("_origin").crossJoin(
        table(rows).mapInArrow(lambda batches: batches, rows.select("_origin").schema)
    ),
    "null behind arrow": lambda rows: rows.mapInArrow(lambda batches: batches, rows.schema).withColumn(
        "_origin", F.lit(None)
    ),
}


@pytest.mark.parametrize("name", OVERWRITTEN)
def test_a_function_that_puts_something_else_into_the_origins_is_refused(
    spark: SparkSession, name: str
) -> None:
    with pytest.raises(FieldError, match="_origin") as refused:
        compiled(spark, OVERWRITTEN[name])
    assert (refused.value.code, refused.value.field) == ("lost-origins", "function")
    assert refused.value.hint


def test_a_row_that_has_lost_its_origin_in_python_is_named_before_a_sink_gets_it() -> None:
    rows = pa.RecordBatch.from_pydict({"_sequence": pa.array([1, None], pa.int64()), "_child": ["", ""]})
    with pytest.raises(ValueError, match="rows without an origin: 1;"):
        Lineage.of(rows)


def test_rows_of_an_earlier_call_are_refused_in_whatever_place(spark: SparkSession) -> None:
    kept: list[DataFrame] = []

    def remembers(rows: DataFrame) -> DataFrame:
        kept.append(rows)
        return kept[0].where("n > 1")

    compiled(spark, remembers)
    foreign: dict[str, Function] = {
        "themselves": remembers,
        "as a table": lambda rows: rows.join(kept[0].select("k"), "k"),
        "through arrow": lambda rows: kept[0].mapInArrow(lambda batches: batches, rows.schema),
        "in a subquery": lambda rows: rows.sparkSession.sql(
            "SELECT * FROM {rows} WHERE n > (SELECT max(n) FROM {old})", rows=rows, old=kept[0]
        ),
        "by name": lambda rows: table(rows).withColumn("_origin", F.lit(None)).alias("__signoff_given"),
    }
    for name, function in foreign.items():
        with pytest.raises(FieldError, match="another call") as refused:
            compiled(spark, function)
        assert refused.value.code == "not-row-by-row", name


def test_the_rows_of_one_function_may_go_into_another(spark: SparkSession) -> None:
    first = compiled(spark, lambda rows: rows.withColumn("z", F.lit(1)))
    assert "z" in compile_frame("next", first, lambda rows: rows.where("z = 1")).columns


@pytest.mark.parametrize(
    "name",
    ["_sequence", "_child", "_received_at", "_others", "_identity", "_mark_counts", "_Others", "_ORIGIN"],
)
def test_a_column_with_a_name_of_the_engines_is_refused(spark: SparkSession, name: str) -> None:
    with pytest.raises(FieldError, match=f'a column "{name}"') as refused:
        compiled(spark, lambda rows: rows.select("*", F.lit(1).alias(name)))
    assert (refused.value.code, refused.value.field) == ("taken-name", "function")
    frame = Frame(spark.createDataFrame([], f"{LINEAGE}, n BIGINT"))
    with pytest.raises(FieldError, match=f'a column "{name}"') as refused:
        compile_frame("made", View(frame, "alive", {name: "n"}), lambda rows: rows)
    assert (refused.value.code, refused.value.field) == ("taken-name", "function")
