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
from signoff.errors import PipelineError, SignoffError, StateError

COMMANDS = {
    "run": "signoff.cli.run",
    "status": "signoff.cli.status",
    "audit": "signoff.cli.audit",
    "explain": "signoff.cli.explain",
    "dead-letters": "signoff.cli.dead_letters",
    "buffers": "signoff.cli.buffers",
    "sources": "signoff.cli.sources",
    "check": "signoff.cli.check",
    "graph": "signoff.cli.graph",
    "describe": "signoff.cli.describe",
    "new": "signoff.cli.new",
}
"""In the order of the help."""


class _LazyGroup(TyperGroup):
    """Imports a command's module only when the command is asked for, so that each starts at once."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return _command(cmd_name) if cmd_name in COMMANDS else None


def _command(name: str) -> Any:
    module = importlib.import_module(COMMANDS[name])
    if hasattr(module, "app"):
        command = typer.main.get_command(module.app)
    else:
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        single.command(name)(module.command)
        command = typer.main.get_command(single)
    command.name = name
    return command


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
