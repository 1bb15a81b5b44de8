"""`select`: new columns from Spark SQL expressions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

from signoff.transforms.contract import FieldError, Step, Transform
from signoff.transforms.frame import View


class SelectConfig(Transform):
    summary: ClassVar[str] = "Compute the columns that go on, from Spark SQL expressions."
    type: Literal["select"] = "select"
    columns: dict[str, str] | list[str] = Field(min_length=1)
    """`name: expression` pairs, or a list of expressions as in SQL's SELECT (`value * 2 AS twice`);
    `*` in a list stands for all columns of the input."""

    def compile(self, step: Step, view: View) -> Mapping[str | None, View]:
        values: dict[str, Column] = {}
        kept: dict[str, str] = {}
        for name, expression in self._named(view):
            if name in values or name in kept:
                raise FieldError(
                    "columns", "duplicate-column", f'column "{name}" is computed twice', "rename one with AS"
                )
            if expression in view.columns and name == expression:
                kept[name] = view.columns[expression]
            else:
                values[name] = F.expr(expression)
        whole, made = view.frame.attempt(step.name, view, values, self.on_error)
        physical = {**kept, **made}
        order = [name for name, _ in self._named(view)]
        return {None: View(view.frame, whole.alive, {name: physical[name] for name in order})}

    def _named(self, view: View) -> list[tuple[str, str]]:
        if isinstance(self.columns, dict):
            return list(self.columns.items())
        named: list[tuple[str, str]] = []
        scope = view.frame.scoped(view).select(*view.columns)
        for expression in self.columns:
            if expression.strip() == "*":
                named += [(name, name) for name in view.columns]
            else:
                named.append((scope.selectExpr(expression).columns[0], expression))
        return named
