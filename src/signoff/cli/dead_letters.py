"""`signoff dead-letters`: list, show, replay and drop what could not be delivered."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from signoff.cli.reading import TEXT, AsJson, PipelineFile, load_for_reading, table, when
from signoff.cli.replayed import IN_VAIN, end_of, print_counts, report
from signoff.engine.gone import obstacle, stage_names
from signoff.errors import StateError
from signoff.ledger import DeadLetter, DeadLetters, EventId, Ledger, RunLock, drop_letters
from signoff.ledger.explain import as_text
from signoff.pipeline.graph import Graph

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="List, show, replay and drop events that could not be delivered.",
)

EventIds = Annotated[
    list[str] | None, typer.Argument(metavar="[EVENT_ID]...", help="Event ids, as `list` prints them.")
]
Stage = Annotated[str | None, typer.Option(help="Only letters of this transform, sink or source.", **TEXT)]
All = Annotated[bool, typer.Option("--all", help="Every letter that is stored.")]

_POLL_S = 0.1
_SHOWN = 60
_REASONS = 10
"""Reasons why letters cannot be replayed that `list` prints."""


@app.command("list")
def list_letters(
    file: PipelineFile,
    stage: Stage = None,
    reason: Annotated[str | None, typer.Option(help="Only reasons that hold this text.", **TEXT)] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many, the oldest first.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
) -> None:
    """List the dead letters that are stored or being replayed, the oldest first.

    One that cannot be replayed as things are is marked with *, and why is said below.
    """
    graph = load_for_reading(file)
    with _letters(graph) as letters:
        names, cut = stage_names(graph), letters.cut_rows()
        if as_json:
            for letter in letters.each(stage=stage, reason=reason, limit=limit):
                fields = _as_dict(letter, obstacle(names, letter, cut))
                typer.echo(json.dumps(fields, ensure_ascii=False))
            return
        found = letters.list(stage=stage, reason=reason, limit=limit, brief=True)
    if not found:
        typer.echo("no dead letters")
        return
    obstacles = {letter.key: why for letter in found if (why := obstacle(names, letter, cut))}
    rows = [
        [x.event_id, x.stage, when(x.at), x.status + ("*" if x.key in obstacles else ""), x.attempts,
         _short(x.reason)]
        for x in found
    ]  # fmt: skip
    typer.echo(table(["event", "stage", "since", "status", "tried", "reason"], rows, right=["tried"]))
    for why, number in Counter(obstacles.values()).most_common(_REASONS):
        typer.echo(f"* {number} cannot be replayed: {why}")


@app.command()
def show(
    file: PipelineFile,
    event_id: Annotated[str, typer.Argument(metavar="EVENT_ID")],
    stage: Stage = None,
    as_json: AsJson = False,
) -> None:
    """Show the letters of one event, also those that were replayed or dropped, with the whole payload.

    Exits with 1 when there is none.
    """
    graph = load_for_reading(file)
    with _letters(graph) as letters:
        found, cut = letters.get(_checked(event_id), stage), letters.cut_rows()
    if not found:
        typer.echo(f"there is no dead letter of {event_id}", err=True)
        raise typer.Exit(1)
    for letter in found:
        fields = _as_dict(letter, obstacle(stage_names(graph), letter, cut))
        if as_json:
            typer.echo(json.dumps(fields, ensure_ascii=False))
        else:
            for name, value in fields.items():
                text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
                typer.echo(f"{name}: {text}")


@app.command()
def replay(
    file: PipelineFile,
    event_ids: EventIds = None,
    stage: Stage = None,
    all_letters: All = False,
    wait: Annotated[bool, typer.Option(help="Wait until the run has replayed them.")] = True,
    as_json: AsJson = False,
) -> None:
    """Send letters again, under their old ids, only to what failed.

    A run that is alive does it; if there is none, it is done here. What became of each letter that was not
    simply delivered is said: dropped, and by which step; failed again, where and why; not replayable, and
    why. Exits with 1 when any failed, could not be replayed or is not decided yet; it stays stored then.
    """
    graph = load_for_reading(file)
    with DeadLetters(graph.state / "dead_letters.db", readonly=not graph.state.exists()) as letters:
        chosen = _choose(letters, event_ids, stage, all_letters)
        names, cut = stage_names(graph), letters.cut_rows()
        unfit = {letter.key: why for letter in chosen if (why := obstacle(names, letter, cut))}
        if fit := [letter for letter in chosen if letter.key not in unfit]:
            _replay(file, graph, letters, fit, wait)
        ends = [end_of(letters, letter, unfit.get(letter.key, "")) for letter in chosen]
    report(ends, as_json)
    if any(end.outcome in IN_VAIN or (wait and end.outcome == "waiting") for end in ends):
        raise typer.Exit(1)


@app.command()
def drop(
    file: PipelineFile,
    event_ids: EventIds = None,
    stage: Stage = None,
    all_letters: All = False,
    as_json: AsJson = False,
) -> None:
    """Give letters up: their events count as dropped, unless something of them was delivered.

    A letter that a living run is about to replay is left alone; the exit code is 1 then.
    """
    state = load_for_reading(file).state
    readonly = not state.exists()
    with (
        DeadLetters(state / "dead_letters.db", readonly=readonly) as letters,
        Ledger(state / "ledger.db", readonly=readonly) as ledger,
    ):
        chosen = _choose(letters, event_ids, stage, all_letters)
        if chosen and RunLock(state).held_by() is None:
            letters.withdraw(chosen, handed=True)
            chosen = [replace(letter, status="stored") for letter in chosen]
        dropped = drop_letters(ledger, letters, chosen)
    print_counts({"asked": len(chosen), "dropped": dropped}, as_json)
    if dropped < len(chosen):
        raise typer.Exit(1)


def _letters(graph: Graph) -> DeadLetters:
    return DeadLetters(graph.state / "dead_letters.db", readonly=True)


def _choose(
    letters: DeadLetters, event_ids: list[str] | None, stage: str | None, all_letters: bool
) -> list[DeadLetter]:
    """The open letters that were asked for; an id without one is a mistake worth telling."""
    if not event_ids:
        if not all_letters and stage is None:
            raise typer.BadParameter("name event ids, or --stage, or --all")
        return letters.list(stage=stage, brief=True)
    chosen: dict[tuple[str, str], DeadLetter] = {}
    for event_id in event_ids:
        found = [x for x in letters.get(_checked(event_id), stage) if x.status not in ("replayed", "dropped")]
        if not found:
            raise typer.BadParameter(f"there is no open dead letter of {event_id}", param_hint="EVENT_ID")
        chosen.update({letter.key: letter for letter in found})
    return letters.whole(chosen.values())


def _replay(file: Path, graph: Graph, letters: DeadLetters, chosen: list[DeadLetter], wait: bool) -> None:
    """Have the run do it, or do it here, which then does need the secrets."""
    if RunLock(graph.state).held_by() is not None:
        letters.request_replay(chosen)
        if wait:
            _await(graph, letters, chosen)
        return
    from signoff.catalog import default
    from signoff.engine.replay import replay_now
    from signoff.pipeline.load import load

    whole = load(file, default())
    letters.request_replay(chosen)
    try:
        replay_now(whole)
    except BaseException as error:
        if RunLock(graph.state).held_by() is None:
            letters.withdraw(chosen)
            raise
        if not isinstance(error, StateError):
            raise
        if wait:  # a run has begun meanwhile, and sees to them
            _await(graph, letters, chosen)


def _await(graph: Graph, letters: DeadLetters, chosen: list[DeadLetter]) -> None:
    """Wait until the run has resolved them, or is gone."""
    lock, asked, seen = RunLock(graph.state), {letter.key for letter in chosen}, -1
    while waiting := len(asked & letters.keys(("replaying", "handed"))):
        if waiting != seen:
            typer.echo(f"waiting for the run: {len(asked) - waiting} of {len(asked)} done", err=True)
            seen = waiting
        if lock.held_by() is None:
            typer.echo("the run has ended; what is left is replayed by the next one", err=True)
            return
        time.sleep(_POLL_S)


def _as_dict(letter: DeadLetter, why_not: str) -> dict[str, Any]:
    """`why_not`: why it cannot be replayed."""
    payload, encoding = as_text(letter.payload)
    fields: dict[str, Any] = {
        "event_id": letter.event_id,
        "source": letter.source,
        "stage": letter.stage,
        "reason": letter.reason,
        "at": when(letter.at),
        "received_at": when(letter.received_at),
        "attempts": letter.attempts,
        "status": letter.status,
        "replayable": not why_not,
        "headers": dict(letter.headers),
        "payload": payload,
    }
    if why_not:
        fields["not_replayable"] = why_not
    if letter.result:
        fields["replay"] = letter.result
    if letter.handed:
        fields["waits_behind"] = list(letter.handed)
    return fields if encoding == "utf-8" else {**fields, "payload_encoding": encoding}


def _checked(event_id: str) -> str:
    try:
        return str(EventId.parse(event_id))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="EVENT_ID") from None


def _short(text: str) -> str:
    first = text.splitlines()[0] if text else ""
    return first if len(first) <= _SHOWN else first[: _SHOWN - 1] + "…"
