"""`signoff dead-letters`: list, show, export, replay, resubmit and drop what could not be delivered."""

from __future__ import annotations

import json
import sys
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated, TextIO

import typer

from signoff.cli.letter_options import (
    All,
    Choice,
    EventIds,
    Matching,
    Reason,
    Since,
    Source,
    Stage,
    Until,
    Where,
    checked,
    choice,
)
from signoff.cli.letter_text import as_dict, edited, payload_of, short
from signoff.cli.reading import AsJson, PipelineFile, load_for_reading, table, when
from signoff.cli.replayed import BEING_DROPPED, IN_VAIN, end_of, print_counts, report
from signoff.cli.replaying import replay_letters
from signoff.cli.terminal import harmless, say
from signoff.durable import whole_file
from signoff.engine.gone import obstacle, stage_names
from signoff.ledger import DeadLetter, DeadLetters, Ledger, RunLock, drop_letters
from signoff.ledger.interrupted_drops import put_back
from signoff.ledger.letter import OPEN, Status
from signoff.ledger.resubmission import resubmit as put_in_its_place
from signoff.ledger.resubmission import why_not
from signoff.pipeline.graph import Graph

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="List, show, export, replay, correct and drop events that could not be delivered.",
)

Closed = Annotated[bool, typer.Option("--closed", help="Also those that were replayed or dropped.")]

_REASONS = 10
"""Reasons why letters cannot be replayed that `list` prints."""
_EVERY: tuple[Status, ...] = (*OPEN, "replayed", "dropped")


@app.command("list")
def list_letters(
    file: PipelineFile,
    stage: Stage = None,
    source: Source = None,
    reason: Reason = None,
    matching: Matching = None,
    since: Since = None,
    until: Until = None,
    where: Where = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many, the oldest first.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
) -> None:
    """List the dead letters that are stored or being replayed, the oldest first.

    One that cannot be replayed as things are is marked with *, and why is said below.
    """
    asked = choice(None, stage, source, reason, matching, since, until, where)
    graph = load_for_reading(file)
    with _letters(graph) as letters:
        if as_json:
            _write(graph, letters, asked, sys.stdout, OPEN, limit)
            return
        names, cut = stage_names(graph), letters.cut_rows()
        found = asked.letters(graph, letters, limit=limit, brief=True)
    if not found:
        typer.echo("no dead letters")
        return
    obstacles = {letter.key: why for letter in found if (why := obstacle(names, letter, cut))}
    rows = [
        [x.event_id, x.stage, when(x.at), x.status + ("*" if x.key in obstacles else ""), x.attempts,
         short(x.reason)]
        for x in found
    ]  # fmt: skip
    say(table(["event", "stage", "since", "status", "tried", "reason"], rows, right=["tried"]))
    for why, number in Counter(obstacles.values()).most_common(_REASONS):
        say(f"* {number} cannot be replayed: {why}")


@app.command()
def show(
    file: PipelineFile,
    event_ids: EventIds = None,
    stage: Stage = None,
    source: Source = None,
    reason: Reason = None,
    matching: Matching = None,
    since: Since = None,
    until: Until = None,
    where: Where = None,
    as_json: AsJson = False,
) -> None:
    """Show letters with all that is known of them, and the whole payload.

    Of events that are named also those that were replayed or dropped. Exits with 1 when there is none.
    """
    asked = choice(event_ids, stage, source, reason, matching, since, until, where)
    if not asked:
        raise typer.BadParameter("name event ids, or say which letters with --stage, --reason, …")
    graph = load_for_reading(file)
    with _letters(graph) as letters:
        if missing := [each for each in event_ids or () if not letters.get(checked(each))]:
            typer.echo(f"there is no dead letter of {missing[0]}", err=True)
            raise typer.Exit(1)
        found = asked.letters(graph, letters, statuses=_EVERY if event_ids else OPEN)
        names, cut = stage_names(graph), letters.cut_rows()
    if not found:
        typer.echo("there is no such dead letter", err=True)
        raise typer.Exit(1)
    for letter in found:
        fields = as_dict(letter, obstacle(names, letter, cut))
        if as_json:
            say(json.dumps(fields, ensure_ascii=False))
        else:
            for name, value in fields.items():
                text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
                say(f"{name}: {text}")


@app.command()
def export(
    file: PipelineFile,
    event_ids: EventIds = None,
    stage: Stage = None,
    source: Source = None,
    reason: Reason = None,
    matching: Matching = None,
    since: Since = None,
    until: Until = None,
    where: Where = None,
    closed: Closed = False,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="PATH", help="A file; `-` for standard output.")
    ] = "-",
) -> None:
    """Write letters as JSON lines, with all that is known of them; without a choice, all that are open.

    A payload that is no text is written as base64, with `payload_encoding`. A file is there whole, or not at
    all.
    """
    asked = choice(event_ids, stage, source, reason, matching, since, until, where)
    graph = load_for_reading(file)
    statuses = _EVERY if closed else OPEN
    with (
        _letters(graph) as letters,
        nullcontext(sys.stdout) if output == "-" else whole_file(Path(output)) as out,
    ):
        number = _write(graph, letters, asked, out, statuses, None)
    if output != "-":
        typer.echo(f"{number} dead letters written to {output}", err=True)


@app.command()
def replay(
    file: PipelineFile,
    event_ids: EventIds = None,
    stage: Stage = None,
    source: Source = None,
    reason: Reason = None,
    matching: Matching = None,
    since: Since = None,
    until: Until = None,
    where: Where = None,
    all_letters: All = False,
    wait: Annotated[bool, typer.Option(help="Wait until the run has replayed them.")] = True,
    as_json: AsJson = False,
) -> None:
    """Send letters again, under their old ids, only to what failed.

    A run that is alive does it; if there is none, it is done here. What became of each letter that was not
    simply delivered is said: dropped, and by which step; failed again, where and why; not replayable, and
    why. Exits with 1 when any failed, could not be replayed or is not decided yet; it stays stored then.
    """
    asked = _some(choice(event_ids, stage, source, reason, matching, since, until, where), all_letters)
    graph = load_for_reading(file)
    with DeadLetters(graph.state / "dead_letters.db", readonly=not graph.state.exists()) as letters:
        with Ledger(graph.state / "ledger.db", readonly=True) as ledger:
            put_back(ledger, letters)
        _replay_and_report(file, graph, letters, _open(graph, letters, asked), wait, as_json)


@app.command()
def resubmit(
    file: PipelineFile,
    event_id: Annotated[str, typer.Argument(metavar="EVENT_ID")],
    stage: Stage = None,
    payload: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="File with the corrected payload; `-`: standard input. Without: $EDITOR is called.",
        ),
    ] = None,
    wait: Annotated[bool, typer.Option(help="Wait until the run has delivered it.")] = True,
    as_json: AsJson = False,
) -> None:
    """Correct an event and send it again, where it failed, as a new event that names the old one.

    The corrected event of incoming/39 has the id incoming/39/+1, and the header signoff-resubmits. The old
    letter is closed as "resubmitted as incoming/39/+1". Should the new one fail, its letter is stored.
    """
    graph = load_for_reading(file)
    readonly = not graph.state.exists()
    with DeadLetters(graph.state / "dead_letters.db", readonly=readonly) as letters:
        found = [x for x in letters.get(checked(event_id), stage) if x.status in OPEN]
        if not found:
            raise typer.BadParameter(f"there is no open dead letter of {event_id}", param_hint="EVENT_ID")
        if len(found) > 1:
            stages = ", ".join(letter.stage for letter in found)
            raise typer.BadParameter(f"{event_id} has several letters: name one with --stage ({stages})")
        (old,) = found
        if why := why_not(old):
            raise typer.BadParameter(why, param_hint="EVENT_ID")
        text = edited(old) if payload is None else payload_of(payload)
        with Ledger(graph.state / "ledger.db") as ledger:
            new = put_in_its_place(ledger, letters, old, text)
        typer.echo(f"{old.event_id} is resubmitted as {new.event_id}", err=True)
        _replay_and_report(file, graph, letters, [new], wait, as_json)


@app.command()
def drop(
    file: PipelineFile,
    event_ids: EventIds = None,
    stage: Stage = None,
    source: Source = None,
    reason: Reason = None,
    matching: Matching = None,
    since: Since = None,
    until: Until = None,
    where: Where = None,
    all_letters: All = False,
    as_json: AsJson = False,
) -> None:
    """Give letters up: their events count as dropped, unless something of them was delivered.

    A letter that a living run is about to replay is left alone; the exit code is 1 then.
    """
    asked = _some(choice(event_ids, stage, source, reason, matching, since, until, where), all_letters)
    graph = load_for_reading(file)
    state = graph.state
    readonly = not state.exists()
    with (
        DeadLetters(state / "dead_letters.db", readonly=readonly) as letters,
        Ledger(state / "ledger.db", readonly=readonly) as ledger,
    ):
        chosen = _open(graph, letters, asked)
        if chosen and RunLock(state).held_by() is None:
            letters.withdraw(chosen, handed=True)
            chosen = [replace(letter, status="stored") for letter in chosen]
        dropped = drop_letters(ledger, letters, chosen)
    print_counts({"asked": len(chosen), "dropped": dropped}, as_json)
    if dropped < len(chosen):
        raise typer.Exit(1)


def _letters(graph: Graph) -> DeadLetters:
    return DeadLetters(graph.state / "dead_letters.db", readonly=True)


def _some(asked: Choice, all_letters: bool) -> Choice:
    """Nothing is replayed or dropped because somebody forgot to say what."""
    if not asked and not all_letters:
        raise typer.BadParameter("name event ids, or say which letters with --stage, --reason, …, or --all")
    return asked


def _open(graph: Graph, letters: DeadLetters, asked: Choice) -> list[DeadLetter]:
    """The open letters that were asked for, with the others of rows that were made of several events."""
    return letters.whole(asked.letters(graph, letters, brief=True))


def _replay_and_report(
    file: Path, graph: Graph, letters: DeadLetters, chosen: list[DeadLetter], wait: bool, as_json: bool
) -> None:
    names, cut = stage_names(graph), letters.cut_rows()
    unfit = {letter.key: why for letter in chosen if (why := obstacle(names, letter, cut))}
    unfit |= {letter.key: BEING_DROPPED for letter in chosen if letter.status == "dropping"}
    if fit := [letter for letter in chosen if letter.key not in unfit]:
        replay_letters(file, graph, letters, fit, wait)
    ends = [end_of(letters, letter, unfit.get(letter.key, "")) for letter in chosen]
    report(ends, as_json)
    if any(end.outcome in IN_VAIN or (wait and end.outcome == "waiting") for end in ends):
        raise typer.Exit(1)


def _write(
    graph: Graph,
    letters: DeadLetters,
    asked: Choice,
    out: TextIO,
    statuses: tuple[Status, ...],
    limit: int | None,
) -> int:
    """One JSON object a line; letter by letter where that can be: there may be more than fit into memory."""
    names, cut, number = stage_names(graph), letters.cut_rows(), 0
    all_at_once = asked.event_ids or asked.where is not None
    found = (
        asked.letters(graph, letters, statuses=statuses, limit=limit)
        if all_at_once
        else letters.each(asked.chosen, statuses=statuses, limit=limit)
    )
    for letter in found:
        fields = as_dict(letter, obstacle(names, letter, cut))
        out.write(harmless(json.dumps(fields, ensure_ascii=False), out) + "\n")
        number += 1
    return number
