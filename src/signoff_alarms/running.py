"""The commands `run` and `route`: write a pipeline of the application, and run it as `signoff run` does."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from signoff import cli
from signoff.errors import PipelineError, SignoffError, StateError
from signoff.pipeline.secrets import redact
from signoff_alarms import pipeline as pipelines
from signoff_alarms import topology

WINDOWS = pipelines.Windows()

Home = Annotated[Path, typer.Option(help="Directory of pipeline.yaml, its state and what it writes.")]
Files = Annotated[
    str | None,
    typer.Option(help="Alarms from files: 'in/*.jsonl', a JSON object a line.", show_default=False),
]
Http = Annotated[
    int | None, typer.Option(help="Alarms by HTTP POST to this port of this machine.", show_default=False)
]
Csv = Annotated[
    str | None,
    typer.Option(
        "--csv",
        help="Alarms from CSV files: 'in/*.csv', with the header "
        "station_id,datapoint_id,alarm_id,event_time,value,valueThreshold,isActive.",
        show_default=False,
    ),
]
Once = Annotated[bool, typer.Option("--once", help="Process what is there, and end.")]


def run_command(
    home: Annotated[
        Path | None,
        typer.Option(
            help="Directory of pipeline.yaml, its state and what it writes.",
            show_default="alarms; alarms-NAME with --queue NAME",
        ),
    ] = None,
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
    csv: Csv = None,
    http: Http = None,
    rabbitmq: Annotated[
        str | None,
        typer.Option(
            envvar=pipelines.RABBITMQ,
            help="amqp://user:password@host:port/%2F: alarms from the queues there, results to an exchange.",
            show_default=False,
        ),
    ] = None,
    queue: Annotated[
        str | None,
        typer.Option(
            help=f"This queue only, in a run of its own: {', '.join(topology.SOURCE_QUEUES)}.",
            show_default="all of them",
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
            help="Close the last windows when alarms stay away for so long, by the clock.",
            show_default="size and lateness of a window; 2s with --once",
        ),
    ] = None,
    window: Annotated[str, typer.Option(help="Size of the windows of failed equipment.")] = WINDOWS.failures,
    voltage_window: Annotated[
        str, typer.Option(help="Size of the windows of the grid's and of batteries' voltage.")
    ] = WINDOWS.voltage,
    lateness: Annotated[
        str, typer.Option(help="How long after its end a window waits for alarms.")
    ] = WINDOWS.lateness,
    last_events: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Time has come as far as the oldest of so many of the newest alarms.",
            show_default="as far as the latest alarm",
        ),
    ] = None,
    parallelism: Annotated[
        int | None, typer.Option(min=1, help="Tasks at a time.", show_default="one for each core")
    ] = None,
) -> None:
    """Analyse alarms: failed equipment, grid voltage, alerts. Simulated ones if no place is given.

    Without a server: results in HOME/out, in files and in SQLite. The pipeline is written to
    HOME/pipeline.yaml; signoff status, audit and all other commands take that file.
    """
    place = _one_place(files=files, csv=csv, http=http, rabbitmq=rabbitmq)
    if place:
        _not_simulated(place, count=count, rate=rate, seed=seed)
    if queue is not None and (rabbitmq is None or queue not in topology.SOURCE_QUEUES):
        known = f"there is {', '.join(topology.SOURCE_QUEUES)}"
        wrong = known if rabbitmq is not None else "queues are at a broker: --rabbitmq says where"
        raise typer.BadParameter(wrong, param_hint="--queue")
    home = home or Path("alarms" if queue is None else f"alarms-{queue.removesuffix('.queue')}")
    idle = idle_after or ("2s" if once else None)
    windows = pipelines.Windows(window, voltage_window, voltage_window, lateness, last_events)
    stored: Any = {"postgres": postgres is not None, "windows": windows}
    if rabbitmq is not None:
        queues = topology.SOURCE_QUEUES if queue is None else (queue,)
        places = pipelines.with_rabbitmq(pipelines.from_queues(queues), idle, **stored)
    elif csv is not None:
        places = pipelines.embedded(pipelines.from_csv(csv), idle, is_csv=True, **stored)
    else:
        sources = _sources(files, http) or pipelines.simulated(
            count=count or (100_000 if once else None),
            rate=rate or 2_000,
            seed=seed or 0,
            max_events_per_batch=20_000,
            simulation={"per_day": 100_000, "low_battery": 309},
        )
        places = pipelines.embedded(sources, idle, **stored)
    spark = {} if parallelism is None else {"spark": {"master": f"local[{parallelism}]"}}
    try:
        named = "alarms" if queue is None else f"alarms_{pipelines.source_of(queue)}"
        text = pipelines.analysis(places, named, **spark)
    except SignoffError as error:
        raise typer.BadParameter(str(error)) from None
    run_pipeline(text, home, once, rabbitmq, postgres)


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

    The queues: power.grid.voltage.queue, humidity.queue, total.battery.voltage.queue,
    equipment.failed.queue and other.alert.messages.queue.
    """
    _one_place(files=files, http=http)
    sources = _sources(files, http) or pipelines.from_http(8080)
    run_pipeline(pipelines.routing(sources), home, once, rabbitmq, None)


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


def run_pipeline(
    text: str, home: Path, once: bool, rabbitmq: str | None = None, postgres: str | None = None
) -> None:
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
