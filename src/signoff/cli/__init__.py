"""The command `signoff`: one module per command, imported when the command is called.

A module `signoff.cli.<name>` has either `command`, a function whose parameters are the command's, or
`app`, a Typer with commands of its own. What is raised on purpose (SignoffError) is printed without
a traceback and without secrets. Exit codes: 2 for wrong usage, a wrong pipeline or a state directory
that cannot be used, 1 for other failures; what else a command may answer stands in its help.
"""

from __future__ import annotations

import importlib
import sys
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import signoff
from signoff.cli.overlay_options import with_layers
from signoff.errors import PipelineError, PluginError, SignoffError, StateError
from signoff.terminal import say

COMMANDS = {
    "run": "Run a pipeline until SIGTERM or Ctrl-C, then finish the events in flight; or run it once.",
    "serve": "Keep pipelines running, each in processes of its own, and answer a REST API.",
    "jobs": "Run jobs, which read tables and have parameters; list, show and cancel their runs.",
    "status": "Show whether a run is alive, what each source has in flight, and how each sink is doing.",
    "top": "Show rates, backlog, sinks, windows and problems, refreshed until Ctrl-C.",
    "tap": "Show the newest rows at a node and their outcomes, also while the pipeline runs.",
    "audit": "Print the account of each source: where every received event is.",
    "explain": "Explain one event: its state, what each sink did with it, its letters and buffered rows.",
    "dead-letters": "List, show, export, replay, correct and drop events that could not be delivered.",
    "buffers": "List the buffers of a pipeline, and discard one that no sink reads.",
    "sources": "List the sources of a state directory; discard one that is gone, or start a new log for one.",
    "backup": "Back up the state directory, as of one moment.",
    "restore": "Restore a backup as the state directory, which must not exist; then print the consequences.",
    "check": "Report every problem of a pipeline at once.",
    "test": "Run the tests of a pipeline, without its servers.",
    "graph": "Draw a pipeline, in the terminal or as Mermaid.",
    "config": "Print the pipeline that is run, as one YAML file.",
    "describe": "Describe the types of nodes and their fields.",
    "new": "Write a starter project that runs as it is.",
}
"""In the order of the help, with the first sentence of each command's own help: to ask the modules for it
would load all of them."""


class _Group(TyperGroup):
    """Shows the help of its commands whole; click cuts it off at the end of the line."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.summary(ctx, name)) for name in self.list_commands(ctx)])

    def summary(self, ctx: Any, name: str) -> str:
        """The first paragraph of a command's help."""
        return " ".join((self.get_command(ctx, name).help or "").split("\n\n")[0].split())  # type: ignore[union-attr]


class _LazyGroup(_Group):
    """Imports a command's module only when the command is asked for, so that each starts at once."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(_of_server().commands) if ctx.params.get("server") else list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if ctx.params.get("server"):
            return _of_server().commands.get(cmd_name)
        return _command(cmd_name) if cmd_name in COMMANDS else None

    def summary(self, ctx: Any, name: str) -> str:
        return super().summary(ctx, name) if ctx.params.get("server") else COMMANDS[name]


def _command(name: str) -> Any:
    module = importlib.import_module(f"signoff.cli.{name.replace('-', '_')}")
    if hasattr(module, "app"):
        module.app.info.cls = _Group
        command = typer.main.get_command(module.app)
    else:
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        single.command(name)(module.command)
        command = typer.main.get_command(single)
    command.name = name
    return with_layers(command)


def _of_server() -> Any:
    """The commands of a client of a service: a group of them."""
    from signoff.cli.remote import app as remote

    return typer.main.get_command(remote)


app = typer.Typer(
    cls=_LazyGroup,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        say(f"signoff {signoff.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
    server: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Ask a service (signoff serve); the commands are then: submit, list, status, audit, "
            "explain, graph, buffers, dead-letters, log, start, stop, drain, delete.",
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", envvar="SIGNOFF_TOKEN_FILE", help="With --server: the file with your token."
        ),
    ] = None,
    server_ca: Annotated[
        Path | None, typer.Option(metavar="PATH", help="With --server: certificates to trust, PEM.")
    ] = None,
) -> None:
    """Event pipelines on Spark: an event leaves its source only when every sink has signed for it."""


def main() -> None:
    """The entry point of the command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a name that is no text is shown all the same
            stream.reconfigure(errors="backslashreplace")
    try:
        app(prog_name="signoff")
    except SignoffError as error:
        from signoff.pipeline.secrets import redact

        say(redact(str(error)), err=True)
        sys.exit(2 if isinstance(error, PipelineError | PluginError | StateError) else 1)
