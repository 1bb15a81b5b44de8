"""`signoff dead-letters`: list, show, export, replay, resubmit and drop what could not be delivered."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, TextIO

import typer

from signoff import terminal
from signoff.cli.letter_options import (
    HINTS,
    All,
    EventIds,
    Matching,
    Reason,
    Since,
    Source,
    Stage,
    Until,
    Where,
)
from signoff.cli.letter_text import edited, lines_of, payload_of
from signoff.cli.reading import AsJson, PipelineFile, as_usage, load_for_reading, table, when
from signoff.cli.replaying import print_counts, print_report, replay_letters
from signoff.durable import whole_file
from signoff.ledger import DeadLetter, DeadLetters
from signoff.ledger.letter import OPEN, Status
from signoff.ledger.resubmission import NAMES
from signoff.operate.corrections import (
    Correction,
    correct,
    first_line,
    letter_to_correct,
    read_corrections,
    resubmit_all,
)
from signoff.operate.letter_choice import Choice, checked, choice
from signoff.operate.letters import (
    EVERY,
    drop_chosen,
    each_letter,
    find_letters,
    open_letters,
    open_of_choice,
)
from signoff.operate.replay import IN_VAIN, Replay, letters_to_replay
from signoff.pipeline.graph import Graph
from signoff.terminal import harmless, say

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="List, show, export, replay, correct and drop events that could not be delivered.",
)

Closed = Annotated[bool, typer.Option("--closed", help="Also those that were replayed or dropped.")]

_REASONS = 10
"""Reasons why letters cannot be replayed that `list` prints."""


@app.command("list")
@as_usage(**HINTS)
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

    A letter that cannot be replayed is marked with *, and the reason is printed below.
    """
    asked = choice(None, stage, source, reason, matching, since, until, where)
    graph = load_for_reading(file)
    if as_json:
        _write(graph, asked, sys.stdout, OPEN, limit)
        return
    found = find_letters(graph, asked, limit=limit, brief=True)
    if not found:
        say("no dead letters")
        return
    rows = [
        [x.event_id, x.stage, when(x.at), x.status + ("*" if each.why_not else ""), x.attempts,
         _in_table(x.reason)]
        for each in found
        for x in [each.letter]
    ]  # fmt: skip
    say(table(["event", "stage", "since", "status", "tried", "reason"], rows, right=["tried"]))
    obstacles = Counter(each.why_not for each in found if each.why_not)
    for why, number in obstacles.most_common(_REASONS):
        say(f"* {number} cannot be replayed: {why}")


@app.command()
@as_usage(**HINTS)
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
    """Show letters with all details and the whole payload.

    Of events that are named also those that were replayed or dropped. Exits with 1 when there is none.
    """
    asked = choice(event_ids, stage, source, reason, matching, since, until, where)
    if not asked:
        raise typer.BadParameter("name event ids, or say which letters with --stage, --reason, …")
    graph = load_for_reading(file)
    with open_letters(graph) as letters:
        if missing := [each for each in event_ids or () if not letters.get(checked(each))]:
            say(f"there is no dead letter of {missing[0]}", err=True)
            raise typer.Exit(1)
    found = find_letters(graph, asked, statuses=EVERY if event_ids else OPEN)
    if not found:
        say("there is no such dead letter", err=True)
        raise typer.Exit(1)
    for letter in found:
        fields = letter.to_json()
        if as_json:
            say(json.dumps(fields, ensure_ascii=False))
        else:
            for name, value in fields.items():
                text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
                say(f"{name}: {text}")


@app.command()
@as_usage(**HINTS)
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
    """Write letters as JSON lines, with all details; without a selection, all that are open.

    A payload that is not text is written as base64, with `payload_encoding`. A file is written whole, or not
    at all.
    """
    asked = choice(event_ids, stage, source, reason, matching, since, until, where)
    graph = load_for_reading(file)
    with nullcontext(sys.stdout) if output == "-" else whole_file(Path(output)) as out:
        number = _write(graph, asked, out, EVERY if closed else OPEN, None)
    if output != "-":
        say(f"{number} dead letters written to {output}", err=True)


@app.command()
@as_usage(**HINTS)
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
    """Replay letters, under their old ids, only where they failed.

    A live run replays them; without one, this command does. Letters of a job are replayed by the run that
    made them, when it resumes. The outcome of each letter that was not simply delivered is printed: dropped,
    and by which step; failed again, where and why; not replayable, and why. Exits with 1 when any failed,
    could not be replayed or has no outcome yet; those stay stored.
    """
    asked = _some(choice(event_ids, stage, source, reason, matching, since, until, where), all_letters)
    graph = load_for_reading(file)
    with letters_to_replay(graph) as letters:
        _replay_and_report(file, graph, letters, open_of_choice(graph, letters, asked), wait, as_json)


@app.command()
@as_usage(**HINTS)
def resubmit(
    file: PipelineFile,
    event_id: Annotated[
        str | None, typer.Argument(metavar="[EVENT_ID]", help="Event id, as `list` prints it.")
    ] = None,
    stage: Stage = None,
    payload: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="File with the corrected payload; `-`: standard input. Without: $EDITOR is called.",
        ),
    ] = None,
    source_file: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="PATH",
            help="Many at once: what `export` wrote, with corrected payloads; `-`: standard input.",
        ),
    ] = None,
    wait: Annotated[bool, typer.Option(help="Wait until the run has delivered it.")] = True,
    as_json: AsJson = False,
) -> None:
    """Correct events and send them again, where they failed, as new events that name the old ones.

    The corrected event of incoming/39 has the id incoming/39/+1, and the header signoff-resubmits. The old
    letter is closed as "resubmitted as incoming/39/+1". Should the new one fail, its letter is stored. The
    payload of a row of CSV or Parquet is a JSON object of the columns. Of --from a line that was not changed
    is left as it is, and nothing is sent if any line cannot be used.
    """
    graph = load_for_reading(file)
    readonly = not graph.state.exists()
    with DeadLetters(graph.state / "dead_letters.db", readonly=readonly) as letters:
        corrections = _corrections(graph, letters, event_id, stage, payload, source_file)
        done = resubmit_all(graph, letters, corrections)
        for why in done.taken:
            say(why, err=True)
        for new in done.new:
            say(f"{new.headers[NAMES]} is resubmitted as {new.event_id}", err=True)
        if done.new:
            _replay_and_report(file, graph, letters, done.new, wait, as_json)
        if done.taken:
            raise typer.Exit(1)


@app.command()
@as_usage(**HINTS)
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
    """Discard letters: their events count as dropped, unless part of them was delivered.

    A letter that a run is about to replay is kept; the exit code is then 1.
    """
    asked = _some(choice(event_ids, stage, source, reason, matching, since, until, where), all_letters)
    done = drop_chosen(load_for_reading(file), asked)
    print_counts(done.to_json(), as_json)
    if done.dropped < done.asked:
        raise typer.Exit(1)


def _corrections(
    graph: Graph,
    letters: DeadLetters,
    event_id: str | None,
    stage: str | None,
    payload: str | None,
    source_file: str | None,
) -> list[Correction]:
    if (event_id is None) == (source_file is None):
        raise typer.BadParameter("name one event, or give corrected ones with --from")
    if event_id is not None:
        old = letter_to_correct(letters, event_id, stage)
        text = edited(old) if payload is None else payload_of(payload)
        return [correct(graph, letters, *old.key, text)]
    assert source_file is not None
    if stage is not None or payload is not None:
        raise typer.BadParameter("the file says which letters and what; leave --stage and --payload out")
    found, unchanged = read_corrections(graph, letters, lines_of(source_file))
    if unchanged:
        say(f"{unchanged} not changed, and left as they are", err=True)
    if not found:
        say("nothing was changed, and nothing was sent", err=True)
        raise typer.Exit(1)
    return found


def _some(asked: Choice, all_letters: bool) -> Choice:
    """Nothing is replayed or dropped because somebody forgot to say what."""
    if not asked and not all_letters:
        raise typer.BadParameter("name event ids, or say which letters with --stage, --reason, …, or --all")
    return asked


def _replay_and_report(
    file: Path,
    graph: Graph,
    letters: DeadLetters,
    chosen: Sequence[DeadLetter],
    wait: bool,
    as_json: bool,
) -> None:
    replay = Replay.of(graph, letters, chosen)
    if fit := [letter for letter in chosen if letter.key not in replay.unfit]:
        replay_letters(file, graph, letters, fit, wait)
    ends = print_report(replay.report(letters), as_json)
    if any(end.outcome in IN_VAIN or (wait and end.outcome == "waiting") for end in ends):
        raise typer.Exit(1)


def _in_table(reason: str) -> str:
    """In one line; cut only for a terminal: what reads a pipe may look for the end of it."""
    return first_line(reason) if terminal.is_terminal(sys.stdout) else " ".join(reason.splitlines())


def _write(graph: Graph, asked: Choice, out: TextIO, statuses: tuple[Status, ...], limit: int | None) -> int:
    """One JSON object a line."""
    number = 0
    for letter in each_letter(graph, asked, statuses=statuses, limit=limit):
        out.write(harmless(json.dumps(letter.to_json(), ensure_ascii=False), out) + "\n")
        number += 1
    return number
