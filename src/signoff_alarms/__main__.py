"""`python -m signoff_alarms`: `run` analyses alarms of base stations, `route` sends them to the queues of
their sensors, `simulate` makes them up: to files, a pipe or RabbitMQ. `report` analyses the stored results of
a period, `jobs` has that done every day, and `listen` shows what comes."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from signoff.errors import SignoffError
from signoff.pipeline.secrets import redact
from signoff_alarms.listening import listen_command
from signoff_alarms.reacting import react_command
from signoff_alarms.reporting import jobs_command, report_command
from signoff_alarms.running import route_command, run_command
from signoff_alarms.simulator import (
    ERRORS,
    FileTarget,
    Form,
    Kind,
    PipeTarget,
    Sent,
    Simulation,
    SimulationConfig,
    Target,
    simulate,
)

DEFAULTS = SimulationConfig()

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _root() -> None:
    """Alarms of mobile base stations: counted in windows, alerts raised; simulated ones to try it with."""


app.command("run")(run_command)
app.command("route")(route_command)
app.command("react")(react_command)
app.command("report")(report_command)
app.command("jobs")(jobs_command)
app.command("listen")(listen_command)


@app.command("simulate")
def simulate_command(
    to: Annotated[
        str,
        typer.Option(
            help="A file; a directory (with --files, or with / at the end); "
            "amqp://user:password@host:port/%2F; or - for standard output.",
            show_default=False,
        ),
    ],
    count: Annotated[int, typer.Option(min=1, help="How many messages in all.", show_default=False)],
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Another seed, other alarms.")] = 0,
    first: Annotated[int, typer.Option("--from", min=0, help="Leave out messages before this number.")] = 0,
    rate: Annotated[float | None, typer.Option(help="Messages per second.", show_default="no limit")] = None,
    files: Annotated[int, typer.Option(min=1, help="How many files in the directory.")] = 1,
    stations: Annotated[int, typer.Option(help="How many stations.")] = DEFAULTS.stations,
    start: Annotated[str, typer.Option(help="Time of alarm 0, UTC.")] = f"{DEFAULTS.start:%Y-%m-%dT%H:%M:%S}",
    per_day: Annotated[float, typer.Option(help="Alarms per day of event time.")] = DEFAULTS.per_day,
    days: Annotated[
        float | None, typer.Option(help="Days of event time for all messages, instead of --per-day.")
    ] = None,
    disorder: Annotated[str, typer.Option(help="Longest usual delay: 15m, 90s, 0.")] = "15m",
    late: Annotated[float, typer.Option(help="Share of alarms beyond it.")] = DEFAULTS.late,
    late_by: Annotated[str, typer.Option(help="How much later they are at most.")] = "6h",
    duplicates: Annotated[float, typer.Option(help="Share that is sent again.")] = DEFAULTS.duplicates,
    errors: Annotated[int, typer.Option(help="One in so many is erroneous; 0: none.")] = DEFAULTS.errors,
    low_battery: Annotated[int, typer.Option(help="Alarm of low batteries: 311 or 309.")] = 311,
    as_csv: Annotated[
        bool,
        typer.Option("--csv", help="CSV instead of JSON: station_id,datapoint_id,alarm_id,event_time,…"),
    ] = False,
    exchange: Annotated[str, typer.Option(help="amqp: the exchange.")] = "alarms",
    declare: Annotated[bool, typer.Option(help="amqp: create exchange and queues if missing.")] = True,
) -> None:
    """Send simulated alarms; the same seed sends the same bytes. Ctrl-C ends it in an orderly way.

    The queues: power.grid.voltage.queue, humidity.queue, total.battery.voltage.queue,
    equipment.failed.queue and other.alert.messages.queue.
    """
    if rate is not None and rate <= 0:
        raise typer.BadParameter("it must be more than 0", param_hint="--rate")
    if first >= count:
        raise typer.BadParameter(f"there are only {count:,} messages in all (--count)", param_hint="--from")
    if days is not None and days <= 0:
        raise typer.BadParameter("it must be more than 0", param_hint="--days")
    config = _config(
        stations=stations,
        start=start,
        per_day=per_day if days is None else count / days,
        disorder=disorder,
        late=late,
        late_by=late_by,
        duplicates=duplicates,
        errors=errors,
        low_battery=low_battery,
    )
    if as_csv and _is_broker(to):
        raise typer.BadParameter("for files and pipes; messages of a queue are JSON", param_hint="--csv")
    sent, began = Sent(first), time.monotonic()
    with _signals() as caught:
        try:
            if _is_broker(to):
                target = _exchange(to, seed, exchange, declare)
            else:
                target = _files(to, files, first, count, "csv" if as_csv else "json")
            with target:
                simulation = Simulation(seed, config)
                simulate(simulation, target, sent, count, rate=rate, stopped=lambda: bool(caught))
        except SignoffError as error:
            _end(f"{redact(str(error))}\n{_how_far(sent, first, to)}")
            raise typer.Exit(1) from None
    _end(_summary(sent, to, time.monotonic() - began), is_error=to == "-")
    if caught and sent.stop < count:
        _end(f"stopped; {_how_far(sent, first, to)}")
        raise typer.Exit(128 + caught[0])


def _config(**fields: Any) -> SimulationConfig:
    try:
        return SimulationConfig.model_validate(fields)
    except ValidationError as error:
        told = [_option(one["loc"]) + one["msg"].removeprefix("Value error, ") for one in error.errors()]
        raise typer.BadParameter("; ".join(told)) from None


def _option(place: tuple[int | str, ...]) -> str:
    return f"--{str(place[0]).replace('_', '-')}: " if place else ""


def _exchange(url: str, seed: int, exchange: str, declare: bool) -> Target:
    from signoff_alarms import topology

    if declare:
        topology.declare(url, exchange)
    return topology.ExchangeTarget(url, seed, exchange)


def _files(to: str, files: int, first: int, stop: int, form: Form) -> Target:
    if to == "-":
        return PipeTarget(sys.stdout.fileno(), form)
    path = Path(to)
    if files == 1 and not to.endswith("/") and not path.is_dir():
        return FileTarget([path], first, stop, form)
    suffix = "jsonl" if form == "json" else form
    return FileTarget([path / f"alarms-{number:05}.{suffix}" for number in range(files)], first, stop, form)


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Collects the first SIGINT or SIGTERM, so that the piece under way is completed; a second one ends at
    once."""
    caught: list[int] = []

    def catch(number: int, _: FrameType | None) -> None:
        caught.append(number)
        for one, handler in before.items():
            signal.signal(one, handler)

    before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}
    for one in before:
        signal.signal(one, catch)
    try:
        yield caught
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _summary(sent: Sent, to: str, took_s: float) -> str:
    erroneous = sum(sent.kinds[kind] for kind in ERRORS)
    wrong = ", ".join(f"{kind} {sent.kinds[kind]:,}" for kind in ERRORS)
    sensors = ", ".join(f"{sensor} {number:,}" for sensor, number in sent.sensors.most_common())
    where = "standard output" if to == "-" else redact(to)
    rows = [
        f"{sent.count:,} messages, {sent.bytes:,} bytes in {took_s:.1f} s to {where}",
        f"  alarms      {sent.kinds[Kind.ALARM]:10,}",
        f"  duplicates  {sent.kinds[Kind.DUPLICATE]:10,}",
        f"  erroneous   {erroneous:10,}  {wrong}",
        f"  late        {sent.late:10,}  of the alarms and duplicates: behind by more than the disorder",
        f"  sensors     {sensors}",
    ]
    if sent.earliest and sent.latest:
        rows.append(f"  event time  {sent.earliest:%Y-%m-%d %H:%M:%S} to {sent.latest:%Y-%m-%d %H:%M:%S} UTC")
    return "\n".join(rows)


def _how_far(sent: Sent, first: int, to: str) -> str:
    done = f"{sent.stop - first:,} messages were sent"
    if sent.stop == first:
        return done
    elsewhere = "" if _is_broker(to) or to == "-" else " and another --to"
    return f"{done}; the same command with --from {sent.stop}{elsewhere} goes on"


def _is_broker(to: str) -> bool:
    return to.lower().startswith(("amqp://", "amqps://"))


def _end(text: str, *, is_error: bool = True) -> None:
    typer.echo(text, err=is_error)


if __name__ == "__main__":
    app(prog_name="python -m signoff_alarms")
