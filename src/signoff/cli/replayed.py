"""What `signoff dead-letters replay` says of each letter, and why some cannot be replayed."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass

import typer

from signoff.cli.terminal import say
from signoff.engine.replay_verdict import DROPPED
from signoff.ledger import DeadLetter, DeadLetters
from signoff.ledger.letter import MOVED


@dataclass(frozen=True)
class End:
    """What became of one letter that was to be replayed."""

    event_id: str
    stage: str
    outcome: str
    """delivered, dropped, failed_again, failed_later, not_replayable or waiting; replayed: closed, and
    forgotten how."""
    reason: str


BEING_DROPPED = "it is being dropped"
IN_VAIN = frozenset({"failed_again", "failed_later", "not_replayable"})


def end_of(letters: DeadLetters, letter: DeadLetter, unfit: str) -> End:
    """What became of a letter; `unfit`: why it was not even tried."""
    if unfit:
        return End(*letter.key, "not_replayable", unfit)
    known = next(iter(letters.get(*letter.key)), None)
    if known is None:  # closed, with so many others that it is history no more
        return End(*letter.key, "replayed", "")
    if known.status == "replaying":
        return End(*letter.key, "waiting", "the run has not come to it yet")
    if known.status == "handed":
        where = ", ".join(known.handed)
        return End(*letter.key, "waiting", f"handed on to {where}, where it is not settled yet")
    if known.status == "dropped":
        return End(*letter.key, "dropped", "by hand, meanwhile")
    if known.status == "dropping":
        return End(*letter.key, "not_replayable", BEING_DROPPED)
    if known.status != "replayed":
        return End(*letter.key, "failed_again", known.reason)
    for outcome, begins in (("failed_later", MOVED), ("dropped", DROPPED)):
        if known.result.startswith(begins):
            return End(*letter.key, outcome, known.result.removeprefix(begins).strip(" :"))
    return End(*letter.key, "delivered", "")


def report(ends: list[End], as_json: bool) -> None:
    number = Counter(end.outcome for end in ends)
    counts = {
        "asked": len(ends),
        "replayed": sum(number[each] for each in ("delivered", "dropped", "failed_later", "replayed")),
        **{each: number[each] for each in ("delivered", "dropped", "failed_again", "failed_later")},
        **{each: number[each] for each in ("not_replayable", "waiting")},
    }
    if as_json:
        say(json.dumps({**counts, "letters": [asdict(end) for end in ends]}, ensure_ascii=False))
    else:
        always = ("asked", "delivered", "failed_again")
        print_counts({name: n for name, n in counts.items() if n or name in always}, as_json=False)
    for end in ends:
        if end.outcome not in ("delivered", "replayed"):
            what = end.outcome.replace("_", " ")
            say(f"{end.event_id} {what} at {end.stage}: {end.reason}", err=True)


def print_counts(counts: dict[str, int], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(counts))
    else:
        typer.echo(", ".join(f"{name.replace('_', ' ')}: {number}" for name, number in counts.items()))
