"""`route`: conditions to named outputs.

An event goes to every output whose condition holds, so it may be copied. An event that matches
none is a dead letter unless `no_match` says otherwise: a route that forgets a case should show.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from pyspark.sql import functions as F  # noqa: N812

from signoff.pipeline.model import NAME_PATTERN, OnFailure
from signoff.transforms.contract import Step, Transform
from signoff.transforms.frame import View

NO_MATCH = "no condition of the route holds"


class RouteConfig(Transform):
    summary: ClassVar[str] = "Send events to named outputs by condition; several may match."
    drops: ClassVar[str] = "no condition of the route holds"
    type: Literal["route"] = "route"
    routes: dict[Annotated[str, Field(pattern=NAME_PATTERN)], str] = Field(min_length=1)
    """Output name to Spark SQL condition. Read an output as `input: <this node>.<output>`."""
    no_match: OnFailure = "dead_letter"
    """What becomes of an event for which no condition holds."""

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(self.routes)

    def compile(self, step: Step, view: View) -> Mapping[str | None, View]:
        frame = view.frame
        view, alive = frame.attempt(
            step.name,
            view,
            {output: F.coalesce(F.expr(where), F.lit(False)) for output, where in self.routes.items()},
            self.on_error,
        )
        views: dict[str | None, View] = {
            output: View(frame, alive[output], view.columns) for output in self.routes
        }
        if self.no_match == "drop":
            frame.note_ends(step.name, view, alive.values())
        else:
            matched = F.lit(False)
            for name in alive.values():
                matched = matched | F.col(name)
            error = frame.compute(view, {"error": F.when(~matched, F.lit(NO_MATCH))})["error"]
            frame.add_error(step.name, error, self.no_match)
        return views
