"""`dedupe`: only the first of the events with the same keys, within a time bound.

The keys seen are Spark state, checkpointed with the batch, so a restart forgets nothing. Time is
the time of receipt, which never runs backwards in a log: no event can be "too late" for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from signoff.pipeline.model import Names
from signoff.transforms.contract import FieldError, Step, Transform
from signoff.transforms.frame import RECEIVED_AT, View, begin_again


class DedupeConfig(Transform):
    summary: ClassVar[str] = "Drop events whose keys were seen before, within a time bound."
    stateful: ClassVar[bool] = True
    drops: ClassVar[str] = "seen before"
    type: Literal["dedupe"] = "dedupe"
    keys: Names = Field(min_length=1)
    """Columns that together make two events the same."""
    within: str = "1 hour"
    """How long a key is remembered, by time of receipt (a Spark interval: `10 minutes`)."""

    def compile(self, step: Step, view: View) -> Mapping[str | None, View]:
        missing = [key for key in self.keys if key not in view.columns]
        if missing:
            known = ", ".join(view.columns)
            raise FieldError(
                "keys", "unresolved-column", f'there is no column "{missing[0]}"', f"there is: {known}"
            )
        if step.trial:
            return {None: view}
        rows = view.frame.cut(view)
        if step.streaming:
            rows = rows.withWatermark(RECEIVED_AT, self.within).dropDuplicatesWithinWatermark(list(self.keys))
        else:
            rows = rows.dropDuplicates(list(self.keys))
        return {None: begin_again(rows, list(view.columns), view.frame)}
