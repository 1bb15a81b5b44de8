"""`sql`: a query over several tables, for jobs: all that Spark SQL can say, joins and window functions too.

It has no lineage and needs none: its rows are the events of the job's second half (see `signoff.jobs`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from signoff.transforms.contract import Step, Transform
from signoff.transforms.frame import View


class SqlConfig(Transform):
    """A query. Compiled by `signoff.jobs.compute`, never into the plan of a source."""

    summary: ClassVar[str] = "Any query of Spark SQL over the tables of a job, by the names of its inputs."
    example: ClassVar[str] = (
        "query: |\n  SELECT stationId, count(*) AS failures\n  FROM windows GROUP BY stationId ORDER BY 2"
    )
    bounded: ClassVar[bool] = True

    type: Literal["sql"] = "sql"
    query: str = Field(min_length=1)
    """A SELECT in Spark SQL. Its tables are the inputs, by their names; `:name` is the value of a parameter.
    The order of its rows is kept. An error fails the run: use `try_cast` and the like where a value may be
    bad."""

    def compile(self, step: Step, view: View) -> Mapping[str | None, View]:
        raise NotImplementedError("a query is part of a job, and not of the plan of a source")
