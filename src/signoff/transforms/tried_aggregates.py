"""Aggregates of a batch, in three steps, so that what fails for a row is an error of that row.

    sum(CAST(text AS INT)) / count(*)
      CAST(text AS INT)     for each row, before rows are united: a row for which it fails is not united
      sum(…), count(*)      for each group, of what was computed
      … / …                 for each united row: if it fails, that is the error of every row in the group

What fails inside of an aggregate function (a sum that overflows) is none of these: it fails the plan, and the
row with which it begins to fail is searched for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from signoff.pipeline.model import OnFailure
from signoff.transforms.aggregate_calls import (
    Span,
    any_of,
    arguments_of,
    children_of,
    is_call,
    is_column,
    replaced,
    span_of,
)
from signoff.transforms.frame import (
    CHILD,
    OTHERS,
    RECEIVED_AT,
    SEQUENCE,
    ErrorColumn,
    Frame,
    View,
    begin_again,
)
from signoff.transforms.try_expressions import UNEXPLAINED, Attempt, chance_in, tried

_ROWS, _ROW, _TRIED, _ERROR, _ALIVE = "__rows", "__failed_row", "__tried", "__error", "__alive"


@dataclass(frozen=True)
class Steps:
    """What is computed of each row, of each group and of each united row."""

    arguments: Mapping[str, Column]
    """By aggregate: a struct of what its calls are given, of the columns of a row."""
    calls: Mapping[str, Column]
    """Of the columns of rows."""
    calls_of_arguments: Mapping[str, Column]
    """The same, of rows that have these structs, under the names of `argument_columns`."""
    results: Mapping[str, Column]
    """By aggregate, of the calls and the keys."""

    @property
    def argument_columns(self) -> dict[str, str]:
        return {name: _arguments_name(at) for at, name in enumerate(self.arguments)}


def steps_of(spark: SparkSession, texts: Mapping[str, str]) -> Steps | None:
    """None where an aggregate cannot be taken apart, because it names all columns at once."""
    parser: Any = spark._jsparkSession.sessionState().sqlParser()
    arguments: dict[str, Column] = {}
    calls: dict[str, Column] = {}
    calls_of_arguments: dict[str, Column] = {}
    results: dict[str, Column] = {}
    for name, text in texts.items():
        tree = parser.parseExpression(text)
        if any_of(tree, lambda node: node.getClass().getSimpleName() == "UnresolvedStar"):
            return None
        column = _arguments_name(len(arguments))
        values: list[Column] = []
        pairs: list[tuple[Span, str]] = []
        for node in _calls(spark, tree):
            where = span_of(node, text)
            given = [
                (part.within(where), f"{column}.v{len(values) + n}")
                for n, part in enumerate(_parts(node, text))
            ]
            values += _values(node, text)
            call = f"__c{len(calls)}"
            calls[call] = F.expr(where.text)
            calls_of_arguments[call] = F.expr(replaced(where.text, given))
            pairs.append((where, call))
        if values:
            arguments[name] = F.struct(*(value.alias(f"v{n}") for n, value in enumerate(values)))
        results[name] = F.expr(replaced(text, pairs))
    return Steps(arguments, calls, calls_of_arguments, results)


def collected_rows(rows: DataFrame) -> dict[str, Column]:
    """An aggregate: the rows of a group, for each of which something may have to be said."""
    others = F.col(OTHERS) if OTHERS in rows.columns else F.lit(None).cast("array<bigint>")
    return {_ROWS: F.collect_list(F.struct(SEQUENCE, CHILD, RECEIVED_AT, others.alias(OTHERS)))}


def united_or_failed(
    stage: str,
    made: DataFrame,
    united: Sequence[Column],
    keys: Sequence[str],
    results: Mapping[str, Column],
    policy: OnFailure,
    before: Frame,
) -> View:
    """The united rows, and for a group of which a result fails its rows as they came, each with an error.

    `made` has keys, calls and `collected_rows`; `united`: the lineage of a united row, computed of it.
    """
    # A condition that Spark cannot know to be true, see `try_expressions`.
    attempts = made.withColumn(_TRIED, F.when(F.size(_ROWS) > 0, tried(results)))
    lots, time = chance_in(attempts, _TRIED)
    row = attempts.schema[_ROWS].dataType.elementType
    nobody = F.array(F.lit(None).cast(row))
    each = attempts.withColumn(
        _ROW, F.explode(F.when(F.col(_TRIED).isNotNull(), nobody).otherwise(F.col(_ROWS)))
    )
    failed = F.col(_ROW).isNotNull()
    flat = each.select(
        *(
            F.when(failed, F.col(_ROW)[name]).otherwise(value).alias(name)
            for name, value in zip((SEQUENCE, CHILD, RECEIVED_AT, OTHERS), united, strict=True)
        ),
        F.when(failed, F.lit(UNEXPLAINED)).alias(_ERROR),
        *keys,
        *(F.col(_TRIED)[f"v{index}"].alias(name) for index, name in enumerate(results)),
    )
    columns = [*keys, *results]
    whole = begin_again(flat, [_ERROR, *columns], before)
    frame, error = whole.frame, whole.columns[_ERROR]
    frame.note_chance(stage, lots=lots, time=time)
    frame.errors.append(ErrorColumn(frame, error, stage, policy, attempt=_attempt(made, keys, results)))
    alive = frame.compute(View(frame, whole.alive, {}), {"alive": F.col(error).isNull()})["alive"]
    return View(frame, alive, {name: whole.columns[name] for name in columns})


def _attempt(made: DataFrame, keys: Sequence[str], results: Mapping[str, Column]) -> Attempt:
    calls = [name for name in made.columns if name.startswith("__c")]
    rows = made.withColumn(_ROW, F.explode(_ROWS)).select(
        F.col(_ROW)[SEQUENCE].alias(SEQUENCE),
        F.col(_ROW)[CHILD].alias(CHILD),
        F.lit(True).alias(_ALIVE),
        *keys,
        *calls,
    )
    return Attempt(rows, _ALIVE, results)


def _arguments_name(at: int) -> str:
    return f"__a{at}"


def _calls(spark: SparkSession, node: Any) -> Iterable[Any]:
    if is_call(spark, node):
        yield node
        return
    for child in children_of(node):
        yield from _calls(spark, child)


def _parts(node: Any, text: str) -> list[Span]:
    """What a call is given that depends on the row, in order; its FILTER is a part like the others."""
    resolved = node.getClass().getSimpleName() == "AggregateExpression"
    inner = node.aggregateFunction() if resolved else node
    found = [part for child in children_of(inner) for part in arguments_of(child)]
    if node.filter().isDefined():
        found.append(node.filter().get())
    spans = {
        (span.start, span.end): span for span in (span_of(p, text) for p in found if any_of(p, is_column))
    }
    return [spans[key] for key in sorted(spans)]


def _values(node: Any, text: str) -> list[Column]:
    """The parts, computed: only for rows that pass the FILTER."""
    condition = span_of(node.filter().get(), text) if node.filter().isDefined() else None
    return [
        F.expr(part.text)
        if condition is None or part == condition
        else F.when(F.expr(condition.text), F.expr(part.text))
        for part in _parts(node, text)
    ]
