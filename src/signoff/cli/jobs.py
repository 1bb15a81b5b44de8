"""`signoff jobs`: run a job, and look at its runs."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from signoff.cli.reading import TEXT, AsJson, load_job_for_reading, table

if TYPE_CHECKING:
    from signoff.jobs.records import Record
    from signoff.jobs.run import JobRun

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="Run jobs, which read tables and have parameters; list, show and cancel their runs.",
)

JobFile = Annotated[Path, typer.Argument(metavar="FILE", help="Job file, YAML or Python.")]
_NEWEST = 50
_LOOK_S = 1.0


@app.command("run")
def run(
    file: JobFile,
    parameters: Annotated[
        list[str] | None,
        typer.Option(
            "-p", "--parameter", metavar="NAME=VALUE", help="Value of a parameter; may be repeated."
        ),
    ] = None,
    as_json: AsJson = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
    drain_seconds: Annotated[
        float, typer.Option(min=0, help="After SIGTERM, how long events in flight may take to finish.")
    ] = 30.0,
    patience_seconds: Annotated[
        float, typer.Option(min=0, help="How long to wait for a sink that fails.")
    ] = 30.0,
    asked_by: Annotated[str, typer.Option(hidden=True)] = "person",
    period: Annotated[str | None, typer.Option(hidden=True)] = None,
    while_asked: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Run a job once, or resume the run if it was interrupted.

    Exits with 0 when every sink has signed and finished, 1 when it failed, 2 for an invalid job or wrong
    usage, 3 when rows were refused or are still undelivered; the same command then resumes the run. A run
    that was done is done again, and replaces its earlier output.
    """
    from signoff.engine.spark.session import java_was_killed
    from signoff.jobs.children import GOES_ON, KILLED
    from signoff.jobs.parameters import asked
    from signoff.jobs.run import JobRun, load_job
    from signoff.jobs.state_dir import RunGoesOn
    from signoff.logs import set_up_logging

    set_up_logging("text")
    if while_asked:
        threading.Thread(target=_end_with_parent, daemon=True).start()
    given = dict(map(_pair, parameters or ()))
    wanted = asked(load_job(file), given)
    if period is not None:
        wanted = wanted.about(period)
    with _shown(quiet) as tick:
        job = JobRun(file, wanted, asked_by, patience_seconds, on_tick=tick)
        with _stoppable(job, drain_seconds):
            try:
                code = job.execute()
            except RunGoesOn as error:
                typer.echo(str(error), err=True)
                raise typer.Exit(GOES_ON) from None
            except Exception:
                if not java_was_killed():
                    raise
                code = KILLED
    if code and java_was_killed():
        typer.echo("Java was killed; the same command goes on with the run", err=True)
        raise typer.Exit(KILLED)
    assert job.record is not None
    typer.echo(json.dumps(job.record.to_json(), ensure_ascii=False) if as_json else _story(job.record))
    raise typer.Exit(code)


@app.command("schedule")
def schedule(
    file: JobFile,
    once: Annotated[bool, typer.Option("--once", help="Run what is due now, and end.")] = False,
) -> None:
    """Run a job by its schedule until SIGTERM or Ctrl-C; several of these may serve one job.

    Each run is its own process. On SIGTERM the current run finishes its events in flight.
    """
    from signoff.jobs.children import ChildRun
    from signoff.jobs.run import load_job
    from signoff.jobs.schedule import Scheduler
    from signoff.jobs.state_dir import claim
    from signoff.logs import set_up_logging

    set_up_logging("text")
    graph = load_job(file)
    if graph.settings.schedule is None:
        typer.echo(f"{file} has no schedule", err=True)
        raise typer.Exit(2)
    claim(graph)
    child, stopped = ChildRun(file), threading.Event()

    def stop(*_: object) -> None:
        stopped.set()
        child.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    scheduler = Scheduler(graph, child, read_again=lambda: load_job(file))
    # What ends while a run goes on was not missed: somebody looks.
    child.meanwhile = lambda: scheduler.tried(scheduler.decide)
    if not once:
        scheduler.announce()
    try:
        while not stopped.is_set():
            begun = scheduler.look() if once else scheduler.tried(scheduler.look)
            if once and not begun:
                break
            stopped.wait(0.0 if begun else _LOOK_S)
    finally:
        scheduler.close()


@app.command("list")
def list_(
    file: JobFile,
    as_json: AsJson = False,
    most: Annotated[int, typer.Option("--most", min=1, help="How many runs at most, the newest.")] = _NEWEST,
) -> None:
    """List the runs of a job, the newest first."""
    from signoff.operate.runs import list_runs

    records = list_runs(load_job_for_reading(file), most)
    if as_json:
        typer.echo(json.dumps([record.to_json() for record in records], ensure_ascii=False))
        return
    header = ("run", "state", "began", "tries", "seconds", "rows", "complete to", "asked by", "reason")
    rows = [
        (
            record.id, record.state, record.to_json()["began_at"], record.tries, f"{record.busy_s:.1f}",
            sum(output.rows for output in record.outputs.values()), record.complete_to or "-",
            record.asked_by, record.reason or "-",
        )
        for record in records
    ]  # fmt: skip
    typer.echo(table(header, rows, right=("tries", "seconds", "rows")) if rows else "no runs")


@app.command("show")
def show(
    file: JobFile,
    which: Annotated[str, typer.Argument(metavar="RUN", help="A run, as `list` names it.", **TEXT)],
    as_json: AsJson = False,
) -> None:
    """Show all details of one run; without #2 at its end, of its last edition."""
    from signoff.jobs.missing import missing_rows
    from signoff.jobs.outputs import second_half
    from signoff.operate.runs import find_run
    from signoff.sinks.contract import missing_text

    graph = load_job_for_reading(file)
    found = find_run(graph, which)
    if found is None:
        typer.echo(f'there is no run "{which}"; signoff jobs list {file} names them', err=True)
        raise typer.Exit(1)
    missing = missing_rows(second_half(graph), found)
    if as_json:
        said = {name: [asdict(one) for one in each] for name, each in missing.items()}
        typer.echo(json.dumps({**found.to_json(), "missing": said}, ensure_ascii=False))
        return
    lines = [f"  missing      {name}: {missing_text(each)}" for name, each in missing.items()]
    typer.echo("\n".join([_story(found), *lines]))


@app.command("cancel")
def cancel(
    file: JobFile,
    which: Annotated[str, typer.Argument(metavar="RUN", help="A run, as `list` names it.", **TEXT)],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    wait_seconds: Annotated[
        float, typer.Option(min=0, help="How long to wait for a process that works on the run.")
    ] = 60.0,
) -> None:
    """Give up a run that has not ended; its rows that are not delivered count as refused.

    Other runs of the job then go on. A run that is asked for by events or a schedule has failed for them.
    """
    from signoff.jobs import cancel as cancelling
    from signoff.operate.runs import find_run

    graph = load_job_for_reading(file)
    if (found := find_run(graph, which)) is None:
        typer.echo(f'there is no run "{which}"; signoff jobs list {file} names them', err=True)
        raise typer.Exit(1)
    if not yes:
        typer.confirm(f"Give up {found.id}?", abort=True)
    until = time.monotonic() + wait_seconds
    record = cancelling.cancel(graph, found, lambda: time.monotonic() > until)
    typer.echo(_story(record))
    if record.state != "cancelled":
        raise typer.Exit(1)


def _end_with_parent() -> None:
    """The process that asked is gone, and asks again when it is back: the run resumes then."""
    while os.read(0, 4096):  # not `sys.stdin`: its lock would be held when the interpreter ends
        pass
    os._exit(1)


def _pair(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise typer.BadParameter(f'"{text}" is not NAME=VALUE', param_hint="-p")
    return name, value


def _story(record: Record) -> str:
    known = record.to_json()
    lines = [f"{record.id}: {record.state}{f', {record.reason}' if record.reason else ''}"]
    values = ", ".join(f"{name}={value}" for name, value in known["parameters"].items())
    lines.append(f"  parameters   {values or '-'}")
    if any(known["period"]):
        lines.append(f"  period       {known['period'][0]} to {known['period'][1]}")
    lines.append(
        f"  asked by     {record.asked_by} at {known['asked_at']}; {_times(record.tries)}, "
        f"{record.busy_s:.1f} s"
    )
    for name, each in record.inputs.items():
        upto = f", complete to {each['complete_to']}" if each.get("complete_to") else ""
        lines.append(f"  read         {name}: {each['rows']} rows{upto}")
    lines += [f"  made         {name}: {output.rows} rows" for name, output in record.outputs.items()]
    outcome = {word: number for word, number in record.outcome.items() if number}
    if outcome:
        lines.append(
            "  rows         " + ", ".join(f"{n} {word.replace('_', '-')}" for word, n in outcome.items())
        )
    return "\n".join(lines)


def _times(tries: int) -> str:
    return "tried once" if tries == 1 else f"tried {tries} times"


@contextmanager
def _stoppable(job: JobRun, drain_s: float) -> Iterator[None]:
    """SIGTERM and Ctrl-C let it finish what is in flight; a second one ends it at once."""

    def stop(*_: object) -> None:
        if job.control.stopping or (job.record is not None and job.record.state == "computing"):
            sys.exit(130)
        job.control.stop(drain_s)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _shown(quiet: bool) -> Iterator[Any]:
    """A bar on a terminal; nothing anywhere else, where the log says what matters."""
    if quiet or not sys.stderr.isatty():
        yield lambda *_: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as bar:
        shown: Mapping[str, Any] = {"task": bar.add_task("starting", total=None)}

        def tick(what: str, done: int, all_: int) -> None:
            bar.update(shown["task"], description=what, completed=done, total=all_)

        yield tick
