"""Values of parameters in Spark SQL: arguments of a query, never part of its text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.classic.column import Column as ClassicColumn

from signoff.pipeline.job_settings import Parameter, Value


def arguments(
    spark: SparkSession, values: Mapping[str, Value], declared: Mapping[str, Parameter]
) -> dict[str, Any]:
    """The arguments of `SparkSession.sql`. A null has the type of its parameter: without one, a query that
    only hands it on would give a column of no type."""
    return {
        name: _null(spark, declared[name].type) if value is None and name in declared else value
        for name, value in values.items()
    }


def _null(spark: SparkSession, kind: str) -> Any:
    jvm: Any = spark._jvm
    data_type = jvm.org.apache.spark.sql.types.DataType.fromDDL(kind)
    literal = jvm.org.apache.spark.sql.catalyst.expressions.Literal.create(None, data_type)
    return ClassicColumn(jvm.org.apache.spark.sql.classic.ExpressionUtils.column(literal))
