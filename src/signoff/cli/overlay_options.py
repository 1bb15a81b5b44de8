"""The options that every command with a pipeline FILE has: what is laid over the file.

They are added here and not written at each command: one that forgot them would look at another pipeline.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer

FILE = "file"


def _options(
    overlays: Annotated[
        list[str] | None,
        typer.Option("--overlay", metavar="FILE", help="Merge this file into the pipeline; may be repeated."),
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="Set one value: sinks.table.retry.attempts=3."),
    ] = None,
    profiles: Annotated[
        list[str] | None,
        typer.Option("--profile", metavar="NAME", help="Use this profile. [env: SIGNOFF_PROFILE]"),
    ] = None,
) -> None:
    """Never called: where Typer makes the options from."""


def with_layers(command: Any) -> Any:
    """The command, or the group of commands, with these options wherever it takes a pipeline file."""
    for each in _commands(command):
        if any(parameter.name == FILE for parameter in each.params):
            at = len(each.params) - ("help" in [parameter.name for parameter in each.params])
            each.params[at:at] = _made()
    return command


def _commands(command: Any) -> Iterator[Any]:
    if hasattr(command, "commands"):
        for each in command.commands.values():
            yield from _commands(each)
    else:
        yield command


def _made() -> list[Any]:
    holder = typer.Typer(add_completion=False)
    holder.command()(_options)
    made = [
        each
        for each in typer.main.get_command(holder).params
        if each.name in ("overlays", "sets", "profiles")
    ]
    for option in made:
        option.expose_value = False
        option.is_eager = True  # before what a command does with FILE itself
        option.callback = _remember
    return made


def _remember(context: Any, parameter: Any, values: Sequence[str] | None) -> None:
    from signoff.pipeline.overlays import Layers, choose

    found = context.meta.setdefault("signoff.layers", {})
    found[parameter.name] = tuple(values or ())
    choose(Layers(**found))
    context.call_on_close(lambda: choose(None))  # another command of this process has its own
