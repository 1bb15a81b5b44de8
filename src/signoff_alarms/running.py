"""The commands `run` and `route`: write a pipeline of the application, and run it as `signoff run` does."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from signoff import cli
from signoff.errors import PipelineError, SignoffError, StateError
from signoff.pipeline.secrets import redact
from signoff_alarms import pipeline as pipelines
from signoff_alarms import topology

Home = Annotated[Path, typer.Option(help="Directory of pipeline.yaml, its state and what it writes.")]
Files = Annotated[
    str | None,
    typer.Option(help="Alarms from files: 'in/*.jsonl', a JSON object a line.", show_default=False),
]
Http = Annotated[
    int | None, typer.Option(help="Alarms by HTTP POST to this port of this machine.", show_default=False)
]
Once = Annotated[bool, typer.Option("--once", help="Process what is there, and end.")]


def run_command(
    home: Home = Path("alarms"),
    once: Once = False,
    count: Annotated[
        int | None,
        typer.Option(min=1, help="So many simulated alarms.", show_default="no end; 100000 with --once"),
    ] = None,
    rate: Annotated[
        float | None, typer.Option(min=0.001, help="Simulated alarms per second.", show_default="2000")
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, max=2**32 - 1, help="Another seed, other simulated alarms.", show_default="0"),
    ] = None,
    files: Files = None,
    http: Http = None,
    rabbitmq: Annotated[
        str | None,
        typer.Option(
            envvar=pipelines.RABBITMQ,
            help="amqp://user:password@host:port/%2F: alarms from the queues there, results to an exchange.",
            show_default=False,
        ),
    ] = None,
    postgres: Annotated[
        str | None,
        typer.Option(
            envvar=pipelines.POSTGRES,
            help="postgresql://user:password@host:port/database: results there, not in SQLite.",
            show_default=False,
        ),
    ] = None,
    idle_after: Annotated[
        str | None,
        typer.Option(
            help="Close the last windows when alarms stay away for so long.",
            show_default="1m; 2s with --once",
        ),
    ] = None,
) -> None:
    """Analyse alarms: failed equipment, grid voltage, alerts. Simulated ones if no place is given.

    Without a server: results in HOME/out, in files and in SQLite. The pipeline is written to
    HOME/pipeline.yaml; signoff status, audit and all other commands take that file.
    """
    place = _one_place(files=files, http=http, rabbitmq=rabbitmq)
    if place:
        _not_simulated(place, count=count, rate=rate, seed=seed)
    idle = idle_after or ("2s" if once else "1m")
    if rabbitmq is not None:
        places = pipelines.with_rabbitmq(pipelines.from_queues(), idle, postgres=postgres is not None)
    else:
        sources = _sources(files, http) or pipelines.simulated(
            count=count or (100_000 if once else None),
            rate=rate or 2_000,
            seed=seed or 0,
            max_events_per_batch=20_000,
            simulation={"per_day": 100_000},
        )
        places = pipelines.embedded(sources, idle, postgres=postgres is not None)
    _run(pipelines.analysis(places), home, once, rabbitmq, postgres)


def route_command(
    rabbitmq: Annotated[
        str,
        typer.Option(
            envvar=pipelines.RABBITMQ, help="amqp://user:password@host:port/%2F", show_default=False
        ),
    ],
    home: Home = Path("alarm_routing"),
    once: Once = False,
    files: Files = None,
    http: Http = None,
) -> None:
    """Take alarms by HTTP (port 8080 by default) or from files, and send each to the queue of its sensor.

    The queues: power.grid.voltage.queue, humidity.queue, total.battery.voltage.queue and
    other.alert.messages.queue.
    """
    _one_place(files=files, http=http)
    sources = _sources(files, http) or pipelines.from_http(8080)
    _run(pipelines.routing(sources), home, once, rabbitmq, None)


def _one_place(**places: object) -> str | None:
    """The option that says where alarms come from."""
    given = [f"--{name}" for name, place in places.items() if place is not None]
    if len(given) > 1:
        raise typer.BadParameter(f"{' and '.join(given)}: alarms come from one of them")
    return given[0] if given else None


def _not_simulated(place: str, **options: object) -> None:
    given = [f"--{name}" for name, value in options.items() if value is not None]
    if given:
        raise typer.BadParameter(f"{' and '.join(given)}: for simulated alarms, and these come by {place}")


def _sources(files: str | None, http: int | None) -> dict[str, pipelines.Node] | None:
    if files is not None:
        return pipelines.from_files(files)
    return None if http is None else pipelines.from_http(http)


def _run(text: str, home: Path, once: bool, rabbitmq: str | None, postgres: str | None) -> None:
    """Write the pipeline, see that what it needs at the broker is there, and run it as `signoff run` does."""
    try:
        file = pipelines.write(text, home)
        if rabbitmq is not None:
            topology.declare(rabbitmq)
            topology.declare_results(rabbitmq)
    except SignoffError as error:
        _say(redact(str(error)))
        raise typer.Exit(1) from None
    for name, address in ((pipelines.RABBITMQ, rabbitmq), (pipelines.POSTGRES, postgres)):
        if address is not None:
            os.environ[name] = address
    _say(f"signoff run {file}{' --once' if once else ''}")
    arguments = ["run", str(file), *(["--once"] if once else [])]
    try:
        code = cli.app(arguments, prog_name="signoff", standalone_mode=False)
    except SignoffError as error:
        _say(redact(str(error)))
        raise typer.Exit(2 if isinstance(error, PipelineError | StateError) else 1) from None
    raise typer.Exit(code or 0)


def _say(text: str) -> None:
    typer.echo(text, err=True)
