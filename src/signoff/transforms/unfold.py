"""`unfold`: one event into as many as an array has elements, each with an id of its own.

The event is settled when all its children are. An empty or null array leaves nothing to deliver:
the event is dropped, and acknowledged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType, StructType

from signoff.transforms.contract import FieldError, Step, Transform
from signoff.transforms.frame import View


class UnfoldConfig(Transform):
    summary: ClassVar[str] = "Turn an event with an array into one event per element."
    drops: ClassVar[str] = "nothing to unfold"
    type: Literal["unfold"] = "unfold"
    column: str
    """Spark SQL expression of the array, usually a column's name."""
    into: str | None = Field(default=None, alias="as")
    """Name of the element in the new events; by default the array column's own name."""
    flatten: bool = False
    """Whether the fields of a struct element become columns instead of one struct column."""

    def compile(self, step: Step, view: View) -> Mapping[str | None, View]:
        frame = view.frame
        probe = frame.scoped(view).select(F.expr(self.column).alias("value"))
        kind = probe.schema["value"].dataType
        if not isinstance(kind, ArrayType):
            raise FieldError(
                "column",
                "type-error",
                f'"{self.column}" is {kind.simpleString()}, not an array',
                "give the name of an array column",
            )
        view, made = frame.attempt(step.name, view, {self.column: F.expr(self.column)}, self.on_error)
        children = F.transform(
            F.col(made[self.column]),
            lambda value, index: F.struct(index.cast("string").alias("child"), value.alias("value")),
        )
        alive, value = frame.multiply(view, children, step.name)
        columns = {name: physical for name, physical in view.columns.items() if name != self.column}
        row = View(frame, alive, columns)
        if not self.flatten:
            return {None: View(frame, alive, {**columns, (self.into or self.column): value})}
        if not isinstance(kind.elementType, StructType):
            raise FieldError("flatten", "type-error", f'the elements of "{self.column}" are not structs')
        fields = {field: F.col(value)[field] for field in kind.elementType.names}
        return {None: View(frame, alive, {**columns, **frame.compute(row, fields)})}
