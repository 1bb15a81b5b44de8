"""`merge`: the events of a batch that have the same keys become one event, or the rows of one event one row.

Bounded by the micro-batch, which is a range of the log that the ledger knows: after a crash, or when a sink
takes the result only later, the same events are united to the same row with the same id. Events with the same
keys that come in another batch are another row.

Each event that went in is settled when the row is: delivered when it is taken, a dead letter when it is
refused. An event that failed before does not go in and keeps its own fate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from pyspark.sql import Column, DataFrame, GroupedData
from pyspark.sql import functions as F  # noqa: N812

from signoff.pipeline.model import Names
from signoff.transforms.contract import FieldError, Step, Transform
from signoff.transforms.frame import CHILD, SEQUENCE, View, begin_again
from signoff.transforms.tried_aggregates import collected_rows, steps_of, united_or_failed
from signoff.transforms.try_expressions import may_fail
from signoff.transforms.united_rows import UNITED, in_order, lineage_aggregates, united, united_lineage

_ROW, _INPUT = "__row", "__input"
_LAST_PART = f"(^|/)[^/{UNITED}][^/]*$"


@dataclass(frozen=True)
class _Groups:
    rows: DataFrame
    grouped: GroupedData
    child: Column | None
    """Of the row a group becomes, where that is not made of its members."""

    def agg(self, values: Mapping[str, Column]) -> DataFrame:
        columns = (value.alias(name) for name, value in values.items())
        return self.grouped.agg(*columns, *lineage_aggregates(self.rows))


class MergeConfig(Transform):
    summary: ClassVar[str] = "Unite events of a batch that have the same keys, or the rows of one event."
    type: Literal["merge"] = "merge"
    keys: Names = ()
    """Columns that events of a batch must have the same values in to become one. Without: what one event
    was last split into (the ways of a diamond that meet here, the elements of an `unfold`) is one again."""
    columns: dict[str, str] | None = None
    """`name: expression` pairs of Spark SQL aggregates (`count(*)`, `max(value)`, `collect_list(value)`,
    which sees the events in order). Without: of each column the first value that is not null, in the
    order of the events or of the inputs. The keys are columns of the result in any case."""

    @property
    def unites(self) -> bool:
        return True

    def compile(self, step: Step, view: View) -> Mapping[str | None, View]:
        check_keys(self.keys, view)
        values = self._values(view)
        groups = self._groups(step, view)
        made = groups.agg(values)  # Spark says here what does not fit, in the words of the user
        if self.columns is not None and (tried := self._tried(step, view, self.columns)) is not None:
            return {None: tried}
        return {None: self._united(groups, made, values, view)}

    def _tried(self, step: Step, view: View, columns: Mapping[str, str]) -> View | None:
        """None if no expression can fail for a row, as far as that can be known."""
        frame = view.frame
        steps = steps_of(frame.df.sparkSession, columns)
        if steps is None:
            return None
        groups, calls = self._groups(step, view), steps.calls
        arguments_fail = may_fail(frame.scoped(view), steps.arguments)
        results_fail = may_fail(groups.agg(calls), steps.results)
        if arguments_fail:
            whole, names = frame.attempt(step.name, view, steps.arguments, self.on_error)
            given = {column: names[name] for name, column in steps.argument_columns.items()}
            groups = self._groups(step, View(frame, whole.alive, {**view.columns, **given}))
            calls = steps.calls_of_arguments
        if results_fail:
            made = groups.agg({**calls, **collected_rows(groups.rows)})
            lineage = united_lineage(groups.child)
            return united_or_failed(step.name, made, lineage, self.keys, steps.results, self.on_error, frame)
        return self._united(groups, groups.agg(calls), steps.results, view) if arguments_fail else None

    def _united(self, groups: _Groups, made: DataFrame, values: Mapping[str, Column], view: View) -> View:
        """One row for each group. `made`: what `values` are computed of, or the values themselves."""
        named = [F.col(f"`{name}`") if name in made.columns else values[name].alias(name) for name in values]
        result = united(made, [*(F.col(f"`{key}`") for key in self.keys), *named], groups.child)
        ordered = result.sortWithinPartitions(SEQUENCE, CHILD)
        return begin_again(ordered, [*self.keys, *values], view.frame)

    def _groups(self, step: Step, view: View) -> _Groups:
        """The rows alive at a view, in the groups of which each becomes one row."""
        rows = _with_position(view.frame.cut(view), step)
        if self.keys:
            ordered = in_order(rows, self.keys, (SEQUENCE, _INPUT, CHILD))
            return _Groups(rows, ordered.groupBy(*self.keys), None)
        rows = rows.withColumn(_ROW, F.regexp_replace(CHILD, _LAST_PART, ""))
        ordered = in_order(rows, (SEQUENCE, _ROW), (_INPUT, CHILD))
        return _Groups(rows, ordered.groupBy(SEQUENCE, _ROW), F.col(_ROW))

    def _values(self, view: View) -> dict[str, Column]:
        if self.columns is None:
            return {name: F.first(name, ignorenulls=True) for name in view.columns if name not in self.keys}
        for name in self.columns:
            if name in self.keys:
                raise FieldError(
                    "columns",
                    "duplicate-column",
                    f'column "{name}" is a key',
                    "leave it out: keys are columns of the result",
                )
        return {name: F.expr(expression) for name, expression in self.columns.items()}


def check_keys(keys: Names, view: View) -> None:
    """Raises FieldError for a key that is not a column."""
    for key in keys:
        if key not in view.columns:
            known = ", ".join(view.columns)
            raise FieldError("keys", "unresolved-column", f'there is no column "{key}"', f"there is: {known}")


def _with_position(rows: DataFrame, step: Step) -> DataFrame:
    """The place of the input a row came through among the inputs of the step."""
    if not step.inputs:
        return rows.withColumn(_INPUT, F.lit(0))
    name = F.substring_index(CHILD, "/", -1)
    return rows.withColumn(_INPUT, F.array_position(F.array(*map(F.lit, step.inputs)), name))
