"""`signoff sources`: what the sources of a state directory have in flight, and giving it up."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from signoff.cli.reading import TEXT, AsJson, PipelineFile, load_for_reading, table
from signoff.engine.state_dir.giving_up import check_name, drop, reset, stranded
from signoff.errors import StateError
from signoff.ledger import Ledger, RunLock
from signoff.ledger.engine_lock import engine_lock
from signoff.ledger.outcome import Account
from signoff.log import LogReader
from signoff.pipeline.graph import Graph
from signoff.terminal import say

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="List the sources of a state directory; discard one that is gone, or start a new log for one.",
)

SourceName = Annotated[str, typer.Argument(metavar="SOURCE", help="Its name, as `list` prints it.", **TEXT)]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


@app.command("list")
def list_sources(file: PipelineFile, as_json: AsJson = False) -> None:
    """List the sources, also those that were renamed or removed while their events were in flight."""
    graph = load_for_reading(file)
    with Ledger(graph.state / "ledger.db", readonly=True) as ledger:
        found = {name: _account(graph, ledger, name) for name in graph.sources}
        gone = stranded(graph, ledger)
    if as_json:
        rows = {**found, **gone}
        said = {name: {**account.as_dict(), "stranded": name in gone} for name, account in rows.items()}
        say(json.dumps(said))
        return
    lines = [[name, account.received, account.in_flight, ""] for name, account in found.items()]
    lines += [[name, account.received, account.in_flight, STRANDED] for name, account in gone.items()]
    say(table(["source", "received", "in-flight", ""], lines, right=["received", "in-flight"]))


STRANDED = "not in the pipeline: these events stay unsettled; see signoff sources --help"


@app.command("drop")
def drop_source(file: PipelineFile, name: SourceName, yes: Yes = False) -> None:
    """Discard the events in flight of a source that is no longer in the pipeline; they count as refused.

    To settle them instead, put the source back under its old name and run the pipeline.
    """
    graph = load_for_reading(file)
    with _alone(graph) as ledger:
        if name in graph.sources:
            raise StateError(
                f'source "{name}" is in the pipeline, which settles its events; remove it first, or see '
                "signoff sources reset --help"
            )
        found = stranded(graph, ledger)
        if name not in found:
            raise StateError(
                f'no removed source has the name "{name}" (there is: {", ".join(found) or "none"})'
            )
        if not yes:
            typer.confirm(f"Discard {found[name].in_flight} events?", abort=True)
        say(f"{drop(graph, ledger, name)} events discarded; they count as refused")


@app.command("reset")
def reset_source(file: PipelineFile, name: SourceName, yes: Yes = False) -> None:
    """Start a new log for a source (or NAME.buffer), when the old one is damaged, lost or of another state.

    Events in flight count as refused, and the source is told so where possible. The new log continues after
    all numbers that were used. The source continues after the last event that can be read in the old log;
    without any, from its own beginning. The old log is moved aside, not removed.
    """
    graph = load_for_reading(file)
    with _alone(graph) as ledger:
        check_name(graph, ledger, name)
        if not yes:
            typer.confirm(f'Discard what "{name}" has in flight, and start a new log?', abort=True)
        done = reset(graph, ledger, name)
    say(f"{done.events} events discarded; they count as refused. The next one is {name}/{done.next_sequence}")
    if done.aside is not None:
        say(f"the old log is in {done.aside}; remove it when you no longer need it")


@contextmanager
def _alone(graph: Graph) -> Iterator[Ledger]:
    with RunLock(graph.state), engine_lock(graph.state), Ledger(graph.state / "ledger.db") as ledger:
        yield ledger


def _account(graph: Graph, ledger: Ledger, name: str) -> Account:
    books = ledger.books(name)
    return books.account(max(LogReader(graph.state / "log" / name).head(), books.next))
