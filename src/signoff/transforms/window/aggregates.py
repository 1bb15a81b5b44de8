"""What the aggregates of a window are made of, and what of them is computed where.

    sum(n * 2) / count(*)       is "__c0 / __c1", made when the window is closed, of two calls:
      sum(n * 2)                `n * 2` in front of the state, for each event; the sum in the state
      count(*)                  nothing in front; the count in the state

An argument is computed in the source's query, whatever the function: an error of it is one row's, and no name
of a column meets one of ours. A `count`, `sum`, `avg`, `min` or `max` of a common type is a `Measure`: events
of a task can be put together before they are handed on. It is computed in the same way where they are not, so
a result does not depend on what else the window computes, nor on how its events came in batches. Arguments of
any other call are handed on, event by event.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    LongType,
    StringType,
    StructField,
    TimestampNTZType,
    TimestampType,
)

from signoff.transforms.aggregate_calls import (
    Span,
    any_of,
    arguments_of,
    children_of,
    function_of,
    is_call,
    is_column,
    is_constant,
    items_of,
    replaced,
    span_of,
)
from signoff.transforms.contract import FieldError
from signoff.transforms.handed_rows import unfit
from signoff.transforms.window.partial import Measure

if TYPE_CHECKING:
    from signoff.transforms.frame import View

ARGUMENT = "__a"
"""Begins the names of arguments that are handed on event by event."""
_INTEGERS = DecimalType(37, 0)
"""Whole numbers are summed up in this type, in which they cannot overflow."""
_EXACT_DIGITS = 28
"""Decimals of so many digits can be summed up in 38: ten thousand million of them."""
_SIMPLE = {"count": "count", "sum": "sum", "avg": "avg", "mean": "avg", "min": "min", "max": "max"}
_COMPARABLE = (
    IntegralType, FloatType, DoubleType, DecimalType, DateType, TimestampType, TimestampNTZType, BooleanType,
    BinaryType,
)  # fmt: skip
_known: dict[tuple[tuple[str, str], ...], list[Aggregate]] = {}
"""Aggregates that were parsed before: a plan is made for every batch."""
_NOT_IN_STREAMS = {
    "WindowExpression": "an OVER clause",
    "UnresolvedWindowExpression": "an OVER clause",
    "ScalarSubquery": "a query of its own",
}


@dataclass(frozen=True)
class Call:
    """One call of an aggregate function."""

    place: int
    """Number among all calls of the window."""
    function: str
    where: Span
    arguments: tuple[Span, ...]
    """Those that depend on the event, the condition of a FILTER among them."""
    simple: Literal["", "rows", "count", "sum", "avg", "min", "max"]
    """What it is where it has one argument of a type that allows it."""
    argument: str
    """That argument."""
    condition: str

    @property
    def value(self) -> str:
        """Column of the argument of a measure."""
        return f"__m{self.place}"

    @property
    def result(self) -> str:
        """Column of what the call gives, when the state is read."""
        return f"__c{self.place}"

    @property
    def columns(self) -> list[str]:
        """Of the arguments that are handed on, where it is no measure."""
        return [f"{ARGUMENT}{self.place}_{number}" for number in range(len(self.arguments))]

    def measure(self, handed: Mapping[str, DataType]) -> Measure | None:
        """How it is put together from partial values, as the columns show that are handed on."""
        partial, number = f"__p{self.place}", f"__n{self.place}"
        if self.simple == "rows":
            return Measure("rows", "", partial)
        if not self.simple or self.value not in handed:
            return None
        if self.simple == "sum" and isinstance(kind := handed[self.value], DecimalType):
            partial = partial if kind == _INTEGERS else f"__d{self.place}"
        return Measure(self.simple, self.value, partial, number if self.simple == "avg" else "")


@dataclass(frozen=True)
class Aggregate:
    """One aggregate of a window."""

    name: str
    text: str
    calls: tuple[Call, ...]

    def finish(self, spark: SparkSession) -> Column:
        """Of the results of its calls. An error would end the query for good: it is null then."""
        text = replaced(self.text, [(call.where, call.result) for call in self.calls])
        if len(self.calls) == 1 and text.strip() == self.calls[0].result:
            return F.col(self.calls[0].result)
        return _tried(spark, F.expr(text))


def aggregates_of(spark: SparkSession, texts: Mapping[str, str]) -> list[Aggregate]:
    """Raises FieldError for what cannot be in a window, AnalysisException for what is no expression."""
    key = tuple(texts.items())
    if key in _known:
        return _known[key]
    found: list[Aggregate] = []
    place = 0
    for name, text in texts.items():
        nodes = _calls(spark, name, text)
        calls = [_call(name, text, node, place + at) for at, node in enumerate(nodes)]
        place += len(calls)
        found.append(Aggregate(name, text, tuple(calls)))
    _known[key] = found
    return found


def calls_of(aggregates: list[Aggregate]) -> Iterator[Call]:
    for aggregate in aggregates:
        yield from aggregate.calls


# -- in front of the state


def values_of(aggregates: list[Aggregate], view: View) -> dict[str, Column]:
    """The columns that are handed on of each event for its aggregates, computed of those of a view."""
    scope = view.frame.scoped(view)
    values: dict[str, Column] = {}
    kinds = _kinds(aggregates, scope)
    for aggregate in aggregates:
        for call in aggregate.calls:
            if call.simple == "rows":
                continue
            value = _value(call, kinds)
            if value is not None:
                values[call.value] = value
                continue
            for column, argument in zip(call.columns, call.arguments, strict=True):
                values[column] = F.expr(argument.text)
                _check_handed(aggregate, argument, kinds[argument.text])
    return values


def _value(call: Call, kinds: Mapping[str, DataType]) -> Column | None:
    """The argument of a measure, in a type in which partial values are exact; None if it is none."""
    if not call.simple:
        return None
    value = F.expr(call.argument)
    if call.simple == "count":
        value = F.when(value.isNotNull(), F.lit(1))
    else:
        kind = kinds[call.argument]
        wanted = _partial_kind(call.simple, kind)
        if wanted is None:
            return None
        value = value if wanted == kind else value.cast(wanted)
    return F.when(F.expr(call.condition), value) if call.condition else value


def _partial_kind(function: str, kind: DataType) -> DataType | None:
    plain = isinstance(kind, FloatType | DoubleType) or kind == StringType()
    if function == "avg":
        return DoubleType() if plain or isinstance(kind, IntegralType) else None
    if function == "sum":
        if isinstance(kind, IntegralType):
            return _INTEGERS
        if isinstance(kind, DecimalType):
            return kind if kind.precision <= _EXACT_DIGITS else None
        return DoubleType() if plain else None
    return kind if isinstance(kind, _COMPARABLE) or kind == StringType() else None


def _check_handed(aggregate: Aggregate, argument: Span, kind: DataType) -> None:
    if (wrong := unfit(kind)) is not None:
        message = f"{argument.text} is {wrong.simpleString()}, which the state of a window cannot hold"
        hint = "aggregate a number instead: unix_micros(b) - unix_micros(a)"
        if not wrong.simpleString().startswith("interval"):
            hint = "convert it to a type that JSON has"
        raise FieldError(f"aggregates.{aggregate.name}", "type-error", message, hint)


def _kinds(aggregates: list[Aggregate], scope: DataFrame) -> dict[str, DataType]:
    """The types of all arguments."""
    texts = {argument.text for call in calls_of(aggregates) for argument in call.arguments}
    texts |= {call.argument for call in calls_of(aggregates) if call.argument}
    ordered = sorted(texts)
    found = scope.select(*(F.expr(text).alias(f"v{at}") for at, text in enumerate(ordered))).schema
    return {text: found[f"v{at}"].dataType for at, text in enumerate(ordered)}


# -- in the state


def handed_fields(aggregates: list[Aggregate], handed: Mapping[str, DataType]) -> list[StructField]:
    """The columns of a row in the log in front of the state; `handed`: those of `values_of`."""
    fields: list[StructField] = []
    for call in calls_of(aggregates):
        measure = call.measure(handed)
        if measure is None:
            fields += [StructField(column, handed[column]) for column in call.columns]
            continue
        kind: DataType = LongType() if measure.function in ("rows", "count") else handed[measure.column]
        if isinstance(kind, DecimalType) and measure.function == "sum" and kind != _INTEGERS:
            kind = DecimalType(kind.precision + 10, kind.scale)
        fields.append(StructField(measure.result, kind))
        if measure.number:
            fields.append(StructField(measure.number, LongType()))
    return fields


def kept(aggregate: Aggregate, schema: Mapping[str, DataType]) -> Iterator[Column]:
    """What the state keeps for each call, of rows with the columns of `handed_fields`."""
    for call in aggregate.calls:
        yield _kept(call, schema).alias(call.result)


def _kept(call: Call, schema: Mapping[str, DataType]) -> Column:
    partial, decimal, number = (F.col(f"__{kind}{call.place}") for kind in ("p", "d", "n"))
    if f"__d{call.place}" in schema:
        # In a sum of sums there is room for ten digits more; a result that has them has overflowed.
        return F.try_sum(decimal).try_cast(schema[f"__d{call.place}"])
    if f"__p{call.place}" not in schema:
        pairs = [
            (span.within(call.where), column)
            for span, column in zip(call.arguments, call.columns, strict=True)
        ]
        text = replaced(call.where.text, pairs)
        # Spark's own sum may wrap around, or raise, where it overflows.
        return F.expr(re.sub(r"^\s*sum\b", "try_sum", text, flags=re.IGNORECASE))
    if call.simple in ("rows", "count"):
        return F.coalesce(F.sum(partial), F.lit(0)).cast("bigint")
    if call.simple == "avg":
        return F.try_divide(F.sum(partial), F.sum(number))
    if call.simple == "sum":
        whole = schema[f"__p{call.place}"] == _INTEGERS
        return F.try_sum(partial).try_cast("bigint") if whole else F.try_sum(partial)
    return F.min(partial) if call.simple == "min" else F.max(partial)


def _tried(spark: SparkSession, value: Column) -> Column:
    """The value, or null where it raises."""
    jvm: Any = spark._jvm
    catalyst: Any = jvm.org.apache.spark.sql.catalyst.expressions
    bridge: Any = jvm.org.apache.spark.sql.classic.ExpressionUtils
    struct: Any = F.struct(value.alias("v"))
    return cast("Column", Column(bridge.column(catalyst.TryEval(bridge.expression(struct._jc)))))["v"]


# -- finding calls


def _calls(spark: SparkSession, name: str, text: str) -> list[Any]:
    parser: Any = spark._jsparkSession.sessionState().sqlParser()
    found: list[Any] = []

    def look(node: Any) -> None:
        if (kind := node.getClass().getSimpleName()) in _NOT_IN_STREAMS:
            message = f"{text.strip()} has {_NOT_IN_STREAMS[kind]}, which a stream cannot have"
            raise FieldError(f"aggregates.{name}", "type-error", message, "use an aggregate of the events")
        if is_call(spark, node):
            found.append(node)
        else:
            for child in children_of(node):
                look(child)

    look(parser.parseExpression(text))
    return found


def _call(name: str, text: str, node: Any, place: int) -> Call:
    resolved = node.getClass().getSimpleName() == "AggregateExpression"
    inner = node.aggregateFunction() if resolved else node
    function = str(inner.prettyName()).lower() if resolved else function_of(node)
    if node.isDistinct():
        raise FieldError(
            f"aggregates.{name}",
            "distinct-aggregate",
            f"{text.strip()} aggregates DISTINCT values, which a stream cannot",
            "use size(collect_set(…)) for an exact count, or approx_count_distinct(…)",
        )
    if any_of(node, lambda each: each.getClass().getSimpleName() == "UnresolvedStar"):
        raise FieldError(f"aggregates.{name}", "type-error", f"{text.strip()} names no column", "name it")
    condition = span_of(node.filter().get(), text) if node.filter().isDefined() else None
    parts = [part for child in children_of(inner) for part in arguments_of(child)]
    spans = tuple(span_of(part, text) for part in parts if any_of(part, is_column))
    own = children_of(inner) if resolved else items_of(node.arguments())
    simple = _SIMPLE.get(function, "") if len(own) == 1 and own[0] in parts[:1] else ""
    argument = ""
    if simple == "count" and is_constant(own[0]) and condition is None:
        simple = "rows"
    elif simple == "count" and is_constant(own[0]):
        argument = "1"
    elif simple:
        argument = span_of(own[0], text).text
    return Call(
        place,
        function,
        span_of(node, text),
        spans,
        cast("Any", simple),
        argument,
        condition.text if condition else "",
    )
