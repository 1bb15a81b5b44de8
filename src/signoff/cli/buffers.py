"""`signoff buffers`: what waits in the buffers of a pipeline's sinks, and giving up what nobody takes."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from signoff.cli.reading import TEXT, AsJson, PipelineFile, load_for_reading, table
from signoff.engine.buffers import Buffer, give_up, give_up_state, read_buffers, state_is_lost
from signoff.engine.gone import give_up_handed, take_back_letters, what_is_gone
from signoff.errors import StateError
from signoff.ledger import DeadLetters, Ledger, RunLock
from signoff.pipeline.graph import Graph

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="List the buffers of a pipeline, and give up one that no sink takes rows from.",
)


@app.command("list")
def list_buffers(file: PipelineFile, as_json: AsJson = False) -> None:
    """List the buffers: whose they are, how many rows wait, how full they are."""
    graph = load_for_reading(file)
    with Ledger(graph.state / "ledger.db", readonly=True) as ledger:
        found = read_buffers(graph, ledger)
    if as_json:
        typer.echo(json.dumps({name: buffer.as_dict() for name, buffer in found.items()}))
    elif found:
        typer.echo(buffer_table(list(found.values())))
    else:
        typer.echo("no buffers")


@app.command()
def drop(
    file: PipelineFile,
    name: Annotated[str, typer.Argument(metavar="BUFFER", help="Its name, as `list` prints it.", **TEXT)],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Drop the rows of a buffer whose sink is no longer in the pipeline; their events are settled.

    They count as dropped, in the account of the buffer and of the sources whose events waited for them. Of a
    window or fold whose state was found lost by a run: what was in the state, which then begins anew. Of a
    `pipeline` sink whose link is no longer in the pipeline: its events wait no more for the other pipeline.
    """
    graph = load_for_reading(file)
    with RunLock(graph.state), Ledger(graph.state / "ledger.db") as ledger:
        found = read_buffers(graph, ledger)
        if name not in found and _give_up_link(graph, ledger, name, yes):
            return
        if name not in found:
            raise typer.BadParameter(f'there is no buffer "{name}" (have: {", ".join(found) or "none"})')
        if state_is_lost(graph, name):
            if not yes:
                typer.confirm(f'Give up what the lost state of "{name}" held?', abort=True)
            typer.echo(f"{give_up_state(graph, ledger, name)} rows dropped; the state begins anew")
            return
        if found[name].sink is not None:
            raise StateError(f'sink "{found[name].sink}" takes rows from this buffer; remove the sink first')
        if not yes:
            typer.confirm(f"Drop {found[name].waiting} rows?", abort=True)
        typer.echo(f"{give_up(graph, ledger, name)} rows dropped")


def _give_up_link(graph: Graph, ledger: Ledger, name: str, yes: bool) -> bool:
    """Whether there was something to wait no more for."""
    with DeadLetters(graph.state / "dead_letters.db") as letters:
        gone = what_is_gone(graph, ledger, letters)
        if gone.unread:
            raise StateError(f"{gone.unread}; nothing is given up")
        if name not in gone.handed:
            return False
        if not yes:
            typer.confirm(f"Wait no more for what becomes of {gone.handed[name]} events?", abort=True)
        number = give_up_handed(graph, ledger, name)
        typer.echo(f"{number} events wait no more for the other pipeline; here they count as dropped")
        if again := take_back_letters(graph, ledger, letters, name):
            typer.echo(f"{again} dead letters wait no more for it either, and are stored again")
    return True


def buffer_table(buffers: list[Buffer]) -> str:
    rows = [
        [
            buffer.name,
            buffer.sink or "-",
            buffer.waiting,
            _size(buffer),
            "nobody takes these rows: see signoff buffers --help" if buffer.orphan else "",
        ]
        for buffer in buffers
    ]
    return table(["buffer", "sink", "waiting", "size", ""], rows, right=["waiting"])


def _size(buffer: Buffer) -> str:
    used = f"{buffer.bytes / 1024**2:.1f} MiB"
    return f"{used} of {buffer.max_bytes / 1024**2:.0f}" if buffer.max_bytes else used
