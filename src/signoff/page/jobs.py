"""The page of jobs: those that events of a pipeline ask for, or the job that is looked at itself; and
reports."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, Response

from signoff.errors import SignoffError
from signoff.jobs.records import Record
from signoff.link.job_sink import JobSinkConfig
from signoff.operate.loading import load_job_for_reading
from signoff.operate.runs import list_runs
from signoff.page.visits import Visit
from signoff.page.watched import WatchedPipeline
from signoff.pipeline.graph import Graph
from signoff.sinks.report.sink import ReportSinkConfig

_NEWEST = 20
_SOON = timedelta(days=400)


@dataclass(frozen=True)
class Report:
    """A file that a sink `report` has made."""

    sink: str
    kind: str
    file: Path
    made: float
    bytes: int


@dataclass(frozen=True)
class Job:
    """A job with its newest runs."""

    name: str
    sink: str
    """The sink whose rows ask for runs; '' of the job itself."""
    problem: str
    schedule: str
    due: str
    runs: tuple[Record, ...]


def jobs_page(visit: Visit) -> Response:
    pipeline = visit.pipeline
    return visit.render(
        "jobs.html", here="jobs", jobs=list(_jobs(pipeline)), reports=list(_reports(pipeline.as_written)),
        asking=pipeline.reading().status["jobs"],
    )  # fmt: skip


def report_file(visit: Visit) -> Response:
    """A report as it is on the disk, in a frame in which it can do nothing."""
    sink, kind = visit.request.path_params["sink"], visit.request.path_params["kind"]
    for each in _reports(visit.pipeline.as_written):
        if (each.sink, each.kind) == (sink, kind):
            headers = {"content-security-policy": "sandbox; default-src 'none'; style-src 'unsafe-inline'"}
            how = "inline" if kind == "html" else "attachment"
            return FileResponse(
                each.file, headers=headers, filename=each.file.name, content_disposition_type=how
            )
    raise HTTPException(404, "there is no such report")


def _jobs(pipeline: WatchedPipeline) -> Iterator[Job]:
    if pipeline.as_written.is_job:
        yield _job(pipeline.as_written, "")
    for name, node in pipeline.graph.sinks.items():
        if isinstance(node.config, JobSinkConfig):
            if not pipeline.follows:
                yield Job(node.config.job, name, "signoff jobs list shows its runs", "", "", ())
                continue
            try:
                yield _job(load_job_for_reading(pipeline.graph.base / node.config.job), name)
            except (SignoffError, OSError) as error:
                yield Job(node.config.job, name, str(error), "", "", ())


def _job(graph: Graph, sink: str) -> Job:
    schedule, due = graph.settings.schedule, ""
    if schedule is not None:
        from signoff.jobs.periods import periods

        now = datetime.now(UTC)
        due = next((f"{period.end:%Y-%m-%d %H:%M %Z}" for period in periods(schedule, now, now + _SOON)), "")
    said = f"{schedule.cron} ({schedule.timezone})" if schedule is not None else ""
    return Job(graph.name, sink, "", said, due, tuple(list_runs(graph, _NEWEST)))


def _reports(graph: Graph) -> Iterator[Report]:
    for name, node in graph.sinks.items():
        if not isinstance(node.config, ReportSinkConfig):
            continue
        for kind in node.config.formats:
            file = (graph.base / node.config.path).with_name(f"{Path(node.config.path).name}.{kind}")
            with suppress(OSError):
                found = file.stat()
                yield Report(name, kind, file, found.st_mtime, found.st_size)
