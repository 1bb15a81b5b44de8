"""The command `react`: critical alerts start analyses of their station and day, and are settled by the
reports.

The queue of alerts decouples it from the analysis of alarms: its pipeline, in HOME/critical, may be down or
behind without an effect on the other.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from signoff.errors import SignoffError
from signoff.pipeline.secrets import redact
from signoff_alarms import analyses, handing_on
from signoff_alarms import pipeline as pipelines
from signoff_alarms.running import Once, run_pipeline

STARTED = (analyses.Analysis.REPEATED_FAILURES, analyses.Analysis.VOLTAGE_AND_FAILURES)
"""Each has a sink in `pipelines/critical.yaml`."""


def react_command(
    home: Annotated[Path, typer.Option(help="Directory that `run` has written.")] = Path("alarms"),
    once: Once = False,
    rabbitmq: Annotated[
        str | None,
        typer.Option(
            envvar=pipelines.RABBITMQ,
            help="amqp://user:password@host:port/%2F: alerts from critical.alerts.queue there.",
            show_default="the files of HOME",
        ),
    ] = None,
    postgres: Annotated[
        str | None,
        typer.Option(
            envvar=pipelines.POSTGRES,
            help="postgresql://user:password@host:port/database, if the results are there.",
            show_default=False,
        ),
    ] = None,
    cool_down: Annotated[
        str, typer.Option(help="Least time between two runs for a station and day.")
    ] = "15m",
    notify: handing_on.Notify = None,
) -> None:
    """Let critical alerts start two analyses: repeated_failures and voltage_and_failures of station and day.

    Reports go to HOME/reports/DAY_STATION. An alert is acknowledged when both are there. Any number of alerts
    of a station and day within the cool-down are one run.
    """
    place = analyses.Home(home)
    try:
        settings = place.prepare(postgres)
        handing_on.keep(place.path, notify)
        for name in STARTED:
            analyses.write(place, name, settings)
    except SignoffError as error:
        typer.echo(redact(str(error)), err=True)
        raise typer.Exit(1) from None
    text = pipelines.critical(cool_down, rabbitmq=rabbitmq is not None)
    run_pipeline(text, home / "critical", once, rabbitmq, postgres)
