"""How many rows ended at which step, without an error and without a sink: counted by Spark in passing.

Spark leaves such rows out before they come to Python. An observation sums up, in the tasks, the columns in
which the steps have noted that a row ended; it is there when the job is done, costs no job of its own, and
counts a task that was tried twice once. It belongs to the plan, and begins anew with each job of it: two
jobs of one plan must not run side by side.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from signoff.transforms.frame import Frame

_OBSERVED = "ended"


def observed(frame: Frame, columns: Sequence[str]) -> DataFrame:
    """The frame's rows, with an eye on those that have ended; if any can, with these columns only."""
    if not frame.ends:
        return frame.df
    by_stage: dict[str, list[str]] = {}
    for stage, name in frame.ends:
        by_stage.setdefault(stage, []).append(name)
    names = [name for _, name in frame.ends]
    sums = [
        F.count_if(reduce(Column.__or__, map(F.col, given))).alias(stage) for stage, given in by_stage.items()
    ]
    return frame.df.select(*columns, *names).observe(frame.fresh(_OBSERVED), *sums)


def ended(df: DataFrame) -> dict[str, int]:
    """By step, how many rows ended there in the job of this plan that has just been done."""
    found: Counter[str] = Counter()
    metrics = df._jdf.queryExecution().observedMetrics().iterator()
    while metrics.hasNext():
        entry = metrics.next()
        if str(entry._1()).endswith(f"_{_OBSERVED}"):
            found.update(json.loads(entry._2().json()))
    return {stage: rows for stage, rows in found.items() if rows}
