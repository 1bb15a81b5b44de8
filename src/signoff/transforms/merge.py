"""`merge`: the events of a batch that have the same keys become one event, or the rows of one event one row.

Bounded by the micro-batch, which is a range of the log that the ledger knows: after a crash, or when a sink
takes the result only later, the same events are united to the same row with the same id. Events with the same
keys that come in another batch are another row.

Each event that went in is settled when the row is: delivered when it is taken, a dead letter when it is
refused. An event that failed before does not go in and keeps its own fate.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from signoff.pipeline.model import Names
from signoff.transforms.contract import FieldError, Step, Transform
from signoff.transforms.frame import CHILD, SEQUENCE, View, begin_again
from signoff.transforms.uniting import UNITED, in_order, lineage_aggregates, united

_ROW, _INPUT = "__row", "__input"
_LAST_PART = f"(^|/)[^/{UNITED}][^/]*$"


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
        rows = _with_position(view.frame.cut(view), step)
        if self.keys:
            groups = in_order(rows, self.keys, (SEQUENCE, _INPUT, CHILD)).groupBy(*self.keys)
            child = None
        else:
            rows = rows.withColumn(_ROW, F.regexp_replace(CHILD, _LAST_PART, ""))
            groups = in_order(rows, (SEQUENCE, _ROW), (_INPUT, CHILD)).groupBy(SEQUENCE, _ROW)
            child = F.col(_ROW)
        made = groups.agg(*(value.alias(name) for name, value in values.items()), *lineage_aggregates(rows))
        columns = [*self.keys, *values]
        result = united(made, columns, child).sortWithinPartitions(SEQUENCE, CHILD)
        return {None: begin_again(result, columns, view.frame)}

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
