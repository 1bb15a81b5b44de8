"""The command `report`: one analysis of a period, as a run of its job, and what it says as files."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from signoff.errors import PipelineError, SignoffError, StateError
from signoff.pipeline.secrets import redact
from signoff_alarms import analyses, handing_on
from signoff_alarms import pipeline as pipelines

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMS = ("json", "pdf", "xlsx", "html")


@dataclass(frozen=True)
class Period:
    """From a moment up to, not including, another one."""

    begin: datetime
    end: datetime

    @property
    def name(self) -> str:
        """For directories."""
        return "_".join(f"{moment:%Y-%m-%dT%H%M%SZ}" for moment in (self.begin, self.end))


class RunFailed(SignoffError):
    """The run of the job came to no report."""


def report_command(
    name: Annotated[analyses.Analysis, typer.Argument(help="Which analysis.", show_default=False)],
    begin: Annotated[
        str, typer.Option("--from", help="2021-05-01 or 2021-05-01T06:00, UTC.", show_default=False)
    ],
    end: Annotated[str, typer.Option("--to", help="The same; not included.", show_default=False)],
    home: Annotated[Path, typer.Option(help="Directory that `run` has written.")] = Path("alarms"),
    forms: Annotated[
        str, typer.Option("--format", help="Of json, pdf, xlsx and html, separated by commas.")
    ] = "json",
    out: Annotated[
        Path | None,
        typer.Option(help="Where the files go: NAME.json and so on.", show_default="HOME/reports/PERIOD"),
    ] = None,
    station: Annotated[
        int | None, typer.Option(help="One station only.", show_default="all stations")
    ] = None,
    postgres: Annotated[
        str | None,
        typer.Option(
            envvar=pipelines.POSTGRES,
            help="postgresql://user:password@host:port/database, if the results are there.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Analyse the results of a period: windows that begin in it, and alarms that came too late for theirs.

    Without --out the JSON form is printed as well. The job is HOME/jobs/NAME.yaml; signoff jobs list and show
    say what its runs did, and signoff jobs schedule runs it every day.
    """
    from signoff.logs import set_up_logging

    chosen, period = _forms(forms), _period(begin, end)
    set_up_logging("text")
    try:
        files = make(analyses.Home(home), name, period, chosen, out, station=station, postgres=postgres)
    except SignoffError as error:
        typer.echo(redact(str(error)), err=True)
        raise typer.Exit(2 if isinstance(error, PipelineError | StateError) else 1) from None
    if out is None and "json" in chosen:
        typer.echo(files[chosen.index("json")].read_text(encoding="utf-8"), nl=False)
    for file in files:
        typer.echo(str(file), err=True)


def jobs_command(
    home: Annotated[Path, typer.Option(help="Directory that `run` has written.")] = Path("alarms"),
    postgres: Annotated[
        str | None,
        typer.Option(envvar=pipelines.POSTGRES, help="As for `report`.", show_default=False),
    ] = None,
    notify: handing_on.Notify = None,
) -> None:
    """Write the jobs of all analyses to HOME/jobs, to be run every day: signoff jobs schedule FILE.

    Each reports the day before at 6:00 UTC, into HOME/reports/DAY.
    """
    try:
        place = analyses.Home(home)
        settings = place.prepare(postgres)
        handing_on.keep(place.path, notify)
        for name in analyses.Analysis:
            typer.echo(f"signoff jobs schedule {analyses.write(place, name, settings)}")
    except SignoffError as error:
        typer.echo(redact(str(error)), err=True)
        raise typer.Exit(1) from None


def make(
    home: analyses.Home,
    name: analyses.Analysis,
    period: Period,
    forms: Sequence[str] = ("json",),
    out: Path | None = None,
    *,
    station: int | None = None,
    postgres: str | None = None,
    spark: SparkSession | None = None,
) -> list[Path]:
    """Run an analysis; returns a file for each of `forms`. Raises SignoffError."""
    from signoff.jobs.parameters import asked
    from signoff.jobs.run import DONE, JobRun, load_job

    if postgres is not None:
        os.environ[pipelines.POSTGRES] = postgres
    job = analyses.write(home, name, home.prepare(postgres))
    of = period.name if station is None else f"{period.name}_{station}"
    given = {"from": period.begin, "to": period.end, "station": station, "out": of}
    graph = load_job(job)
    if handing_on.PARAMETER in graph.settings.parameters:
        given[handing_on.PARAMETER] = False  # who asks here gets the files
    run = JobRun(job, asked(graph, given))
    run.spark = spark
    code, record = run.execute(), run.record
    assert record is not None
    if code != DONE:
        raise RunFailed(
            f"{name}: {record.reason or record.state}; the same command goes on with it, "
            f"and signoff jobs show {job} '{record.key}' says what was done"
        )
    made = home.path / "reports" / of
    document = _document(name, period, record.complete_to, made / f"{name}.json")
    return _publish(name, made, out or made, forms, document)


def _document(name: str, period: Period, complete_to: str | None, made: Path) -> dict[str, Any]:
    inputs = json.loads(made.read_text(encoding="utf-8"))["inputs"]
    rows: list[Mapping[str, Any]] = inputs.get("rows", {}).get("rows", [])
    upto = None if complete_to is None else _text(datetime.fromisoformat(complete_to).astimezone(UTC))
    return {
        "analysis": str(name),
        "from": _text(period.begin),
        "to": _text(period.end),
        "complete_to": upto,
        "rows": rows,
    }


def _publish(
    name: str, made: Path, out: Path, forms: Sequence[str], document: Mapping[str, Any]
) -> list[Path]:
    """The files, each whole at any moment."""
    files = []
    try:
        out.mkdir(parents=True, exist_ok=True)
        for form in forms:
            # What the report itself keeps as JSON is left alone: its sink replaces it.
            stem = f"{name}.rows" if form == "json" and out == made else name
            file, part = out / f"{stem}.{form}", out / f".{name}.{form}.part"
            if form == "json":
                part.write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
            elif out == made:
                files.append(file)
                continue
            else:
                shutil.copyfile(made / f"{name}.{form}", part)
            part.replace(file)
            files.append(file)
    except OSError as error:
        raise SignoffError(f"cannot write to {out}: {error.strerror}") from error
    return files


def _forms(text: str) -> list[str]:
    chosen = list(dict.fromkeys(each.strip().lower() for each in text.split(",") if each.strip()))
    if unknown := [each for each in chosen if each not in FORMS]:
        raise typer.BadParameter(
            f'there is no form "{unknown[0]}"; there is {", ".join(FORMS)}', param_hint="--format"
        )
    if missing := [each for each in chosen if each not in analyses.forms()]:
        raise typer.BadParameter(f'{missing[0]} needs pip install "signoff[report]"', param_hint="--format")
    return chosen or ["json"]


def _period(begin: str, end: str) -> Period:
    period = Period(_moment(begin, "--from"), _moment(end, "--to"))
    if period.begin >= period.end:
        raise typer.BadParameter(
            f"{_text(period.begin)} is not before {_text(period.end)}, which --to says", param_hint="--from"
        )
    return period


def _moment(text: str, option: str) -> datetime:
    try:
        found = datetime.fromisoformat(text.strip().removesuffix("UTC").strip())
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):
        raise typer.BadParameter(
            f'"{text}" is no time; write 2021-05-01 or 2021-05-01T06:00:00Z', param_hint=option
        ) from None


def _text(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")
