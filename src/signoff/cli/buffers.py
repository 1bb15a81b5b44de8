"""`signoff buffers`: the backlog in the buffers of a pipeline's sinks, and discarding buffers that no sink
reads."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from signoff.cli.reading import TEXT, AsJson, PipelineFile, as_usage, load_for_reading, table
from signoff.engine.state_dir.buffers import Buffer
from signoff.operate.buffers import drop_buffer
from signoff.operate.buffers import list_buffers as all_buffers
from signoff.terminal import say

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="List the buffers of a pipeline, and discard one that no sink reads.",
)


@app.command("list")
def list_buffers(file: PipelineFile, as_json: AsJson = False) -> None:
    """List the buffers: their sinks, how many rows wait, how full they are."""
    found = all_buffers(load_for_reading(file))
    if as_json:
        say(json.dumps({name: buffer.as_dict() for name, buffer in found.items()}))
    elif found:
        say(buffer_table(list(found.values())))
    else:
        say("no buffers")


@app.command()
@as_usage(buffer="BUFFER")
def drop(
    file: PipelineFile,
    name: Annotated[str, typer.Argument(metavar="BUFFER", help="Its name, as `list` prints it.", **TEXT)],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Drop the rows of a buffer whose sink is no longer in the pipeline; their events are settled.

    They count as dropped, in the account of the buffer and of the sources whose events waited for them. With
    the name of a window or fold whose state is lost: drops what the state held, and the step starts with an
    empty state. With the name of a `pipeline` sink whose link is no longer in the pipeline: its events no
    longer wait for the other pipeline.
    """

    def confirm(question: str) -> None:
        if not yes:
            typer.confirm(question, abort=True)

    for sentence in drop_buffer(load_for_reading(file), name, confirm):
        say(sentence)


def buffer_table(buffers: list[Buffer]) -> str:
    rows = [
        [
            buffer.name,
            buffer.sink or "-",
            buffer.waiting,
            _size(buffer),
            "no sink takes these rows: see signoff buffers --help" if buffer.orphan else "",
        ]
        for buffer in buffers
    ]
    return table(["buffer", "sink", "waiting", "size", ""], rows, right=["waiting"])


def _size(buffer: Buffer) -> str:
    used = f"{buffer.bytes / 1024**2:.1f} MiB"
    return f"{used} of {buffer.max_bytes / 1024**2:.0f}" if buffer.max_bytes else used
