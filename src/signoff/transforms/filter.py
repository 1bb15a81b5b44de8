"""`filter`: keep the events for which a condition holds; the others are dropped and acknowledged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pyspark.sql import functions as F  # noqa: N812

from signoff.transforms.contract import Step, Transform
from signoff.transforms.frame import View


class FilterConfig(Transform):
    summary: ClassVar[str] = "Keep the events for which a Spark SQL condition is true; drop the others."
    drops: ClassVar[str] = "the condition does not hold"
    type: Literal["filter"] = "filter"
    where: str
    """Spark SQL condition over the input's columns. Null counts as false."""

    def compile(self, step: Step, view: View) -> Mapping[str | None, View]:
        whole, made = view.frame.attempt(step.name, view, {"where": F.expr(self.where)}, self.on_error)
        view.frame.note_ends(step.name, whole, [made["where"]])
        return {None: View(view.frame, made["where"], view.columns)}
