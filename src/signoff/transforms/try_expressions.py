"""Expressions of users, evaluated so that one which fails for a row is that row's error.

In Spark a cast that fails, a division by zero or a wrong date ends the whole query. Here the expressions of a
step are put into one struct and evaluated inside Catalyst's own `TryEval`: the struct is null exactly for the
rows for which one of them raised, and not null for a null result. It is part of the generated code and costs
about as much as `try_cast`.

`TryEval` forgets why. The few rows it found are evaluated again, alone, to hear Spark's reason: see
`signoff.engine.plan.failure_reasons`.

Spark computes a repeated part of several expressions once, in front of them, and then it would raise outside
of the try. It does not do so with what stands in a branch of CASE WHEN, so every attempt is in one, under a
condition that Spark cannot know to be true.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from signoff.transforms.datetime_patterns import check_literals

UNEXPLAINED = "an expression of this step failed"
"""What the error column of an attempt holds, until the reason is known."""

_HARMLESS = frozenset(
    [
        *("Alias", "AttributeReference", "Literal", "GetStructField", "CreateNamedStruct"),
        *("And", "Or", "Not", "EqualTo", "EqualNullSafe", "In", "InSet", "IsNull", "IsNotNull", "IsNaN"),
        *("LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual"),
        *("Coalesce", "If", "CaseWhen", "Nvl", "NullIf", "XxHash64", "Murmur3Hash"),
        *("Lower", "Upper", "StartsWith", "EndsWith", "Contains", "Length", "OctetLength"),
        *("StringTrim", "StringTrimLeft", "StringTrimRight", "Concat", "ConcatWs"),
    ]
)
"""Expressions that raise for no value. What is not listed here is tried."""
_ARITHMETIC = frozenset(["Add", "Subtract", "Multiply", "UnaryMinus", "Abs"])


@dataclass(frozen=True)
class Attempt:
    """The expressions of one step, and the rows they are evaluated for."""

    rows: DataFrame
    """With the columns of lineage, and those the expressions name."""
    alive: str
    values: Mapping[str, Column]
    suffix: str = ""
    """What comes behind the names of the rows where they failed."""


def tried(values: Mapping[str, Column]) -> Column:
    """A struct of the values in their order, or null if one of them raises."""
    struct = F.struct(*(value.alias(f"v{index}") for index, value in enumerate(values.values())))
    jvm = _jvm()
    utils = jvm.org.apache.spark.sql.classic.ExpressionUtils
    attempt = jvm.org.apache.spark.sql.catalyst.expressions.TryEval(utils.expression(struct._jc))
    return Column(utils.column(attempt))


def may_fail(rows: DataFrame, values: Mapping[str, Column]) -> bool:
    """Whether one of the expressions could raise for some row; no doubt means false.

    Raises pyspark's AnalysisException for an expression that does not fit the rows, BadPattern for one with a
    datetime pattern that would fail for every row.
    """
    if not values:
        return False
    plan = rows.select(*(value.alias(name) for name, value in values.items()))._jdf.queryExecution()
    expressions = plan.analyzed().projectList()
    every = [expressions.apply(index) for index in range(expressions.size())]
    if not any(map(_can_raise, every)):
        return False
    for expression in every:
        check_literals(expression)
    return True


def chance_in(rows: DataFrame, column: str) -> tuple[bool, bool]:
    """Whether a column that was computed last draws lots (`rand()`), and has another value whenever it is
    computed; and whether it tells the time, and has another one in the next job."""
    expressions = rows._jdf.queryExecution().analyzed().projectList()
    expression = expressions.apply(rows.columns.index(column))
    return not expression.deterministic(), tells_time(expression)


def tells_time(expression: Any) -> bool:
    """Whether an expression, as Spark has analysed it, asks for the current time or date."""
    time = _jvm().org.apache.spark.sql.catalyst.trees.TreePattern.CURRENT_LIKE()
    return bool(expression.containsPattern(time))


def _can_raise(expression: Any) -> bool:
    kind = expression.getClass().getSimpleName()
    if kind not in _HARMLESS and not _widens(expression) and not _has_no_limits(kind, expression):
        return True
    children = expression.children()
    return any(_can_raise(children.apply(index)) for index in range(children.size()))


def _widens(expression: Any) -> bool:
    """Whether it is a cast that loses nothing, such as Spark itself adds to compare INT with BIGINT."""
    if expression.getClass().getSimpleName() != "Cast":
        return False
    cast = _jvm().org.apache.spark.sql.catalyst.expressions.Cast
    return bool(cast.canUpCast(expression.child().dataType(), expression.dataType()))


def _has_no_limits(kind: str, expression: Any) -> bool:
    """Whether it is arithmetic that ends in infinity instead of an error."""
    return kind in _ARITHMETIC and expression.dataType().simpleString() in ("double", "float")


def _jvm() -> Any:
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    assert context is not None and context._jvm is not None
    return context._jvm
