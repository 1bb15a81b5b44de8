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
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import signoff
from signoff.cli.layered import with_layers
from signoff.errors import PipelineError, SignoffError, StateError

COMMANDS = {
    "run": "Run a pipeline until SIGTERM or Ctrl-C, which finish what is in flight; or once.",
    "status": "Show whether a run is alive, what each source has in flight, and how each sink is doing.",
    "audit": "Print the account of each source: where every event is that was received.",
    "explain": "Tell the story of one event: its state, each sink's part in it, its dead letters, its rows "
    "in buffers.",
    "dead-letters": "List, show, export, replay, correct and drop events that could not be delivered.",
    "buffers": "List the buffers of a pipeline, and give up one that no sink takes rows from.",
    "sources": "List the sources a state directory knows; give up one that is gone, or begin its log anew.",
    "backup": "Copy the state directory: log, ledger, dead letters, buffers, windows and folds, all of one "
    "moment.",
    "restore": "Put a backup in the place of the state directory, which must not be there; then say what "
    "follows.",
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
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return _command(cmd_name) if cmd_name in COMMANDS else None

    def summary(self, ctx: Any, name: str) -> str:
        return COMMANDS[name]


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
        typer.echo(f"signoff {signoff.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
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

        typer.echo(redact(str(error)), err=True)
        sys.exit(2 if isinstance(error, PipelineError | StateError) else 1)
