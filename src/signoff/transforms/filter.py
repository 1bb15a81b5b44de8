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
        alive = view.frame.compute(view, {f"{step.name}_alive": F.expr(self.where)})[f"{step.name}_alive"]
        view.frame.note_ends(step.name, view, [alive])
        return {None: View(view.frame, alive, view.columns)}
