"""The runs of a job: what `signoff jobs list` and `show` say of them."""

from __future__ import annotations

from signoff.jobs.records import Record, Records
from signoff.pipeline.graph import Graph

ALL = -1


def list_runs(job: Graph, most: int = 50) -> list[Record]:
    """The newest runs, the newest first; `job`: as it is written (`load_job_for_reading`)."""
    with Records(job.state, readonly=True) as records:
        return records.newest(most)


def find_run(job: Graph, which: str) -> Record | None:
    """A run by its id; without `#2` at its end, the last edition of it."""
    found = [each for each in list_runs(job, ALL) if which in (each.id, each.key)]
    return max(found, key=lambda record: record.edition, default=None)
