"""`sample`: a share of the events, the same ones at every replay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field
from pyspark.sql import functions as F  # noqa: N812

from signoff.transforms.contract import Step, Transform
from signoff.transforms.frame import CHILD, SEQUENCE, View

_BUCKETS = 1_000_000


class SampleConfig(Transform):
    summary: ClassVar[str] = "Keep a share of the events; drop the others."
    drops: ClassVar[str] = "not in the sample"
    type: Literal["sample"] = "sample"
    fraction: float = Field(ge=0, le=1)
    """Share of the events to keep, between 0 and 1."""
    key: str | None = None
    """Spark SQL expression: events with the same key are all kept or all dropped."""
    seed: int = 0
    """Another seed keeps another share."""

    def compile(self, step: Step, view: View) -> Mapping[str | None, View]:
        # A hash of the lineage, not rand(): a replayed batch must keep what it kept before.
        parts = [F.expr(self.key)] if self.key else [F.col(SEQUENCE), F.col(CHILD)]
        bucket = F.pmod(F.xxhash64(F.lit(self.seed), *parts), F.lit(_BUCKETS))
        kept = bucket < F.lit(round(self.fraction * _BUCKETS))
        whole, made = view.frame.attempt(step.name, view, {"key": kept}, self.on_error)
        view.frame.note_ends(step.name, whole, [made["key"]])
        return {None: View(view.frame, made["key"], view.columns)}
