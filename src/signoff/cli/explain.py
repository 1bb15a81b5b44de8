"""`signoff explain`: where one event is, and why it is not acknowledged."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from signoff.cli.reading import AsJson, PipelineFile, as_usage, dash, load_for_reading, table, when
from signoff.ledger.explain import Explanation
from signoff.operate.event_story import read_story
from signoff.terminal import say

_SHOWN = 500
"""Characters of a payload that are shown; `--json` has all of it."""


@as_usage(event_id="EVENT_ID")
def command(
    file: PipelineFile,
    event_id: Annotated[
        str, typer.Argument(metavar="EVENT_ID", help="Such as incoming/17, or incoming/17/3 for a row of it.")
    ],
    as_json: AsJson = False,
) -> None:
    """Explain one event: its state, what each sink did with it, its letters and buffered rows.

    Exits with 1 when there is no such event.
    """
    story = read_story(load_for_reading(file), event_id)
    if as_json:
        say(json.dumps(story.to_json(), ensure_ascii=False))
    else:
        _print(story.event)
        for row in story.buffered:
            say("")
            _print(row)
        for sink, text in story.asked_for:
            say(f"{sink}: {text}")
    if not story.known:
        raise typer.Exit(1)


def _print(story: Explanation) -> None:
    told = {True: "acknowledged", False: "not acknowledged", None: ""}[story.acknowledged]
    say(f"{story.event_id}: {dash(story.state)}{', ' + told if told else ''}")
    say(f"  {story.why}")
    if story.received_at:
        say(f"  received {story.received_at}")
    if story.lines:
        say(table(["stage", "row", "state", ""], [[x.stage, x.event_id, dash(x.state), x.text]
                                                         for x in story.lines]))  # fmt: skip
    for letter in story.letters:
        say(f"dead letter at {letter.stage} ({letter.status}, {when(letter.at)}): {letter.reason}")
        if letter.first_reason:
            say(f"  failed first: {letter.first_reason}")
    if story.headers:
        say("headers: " + json.dumps(dict(story.headers), ensure_ascii=False))
    if story.payload is not None:
        more = "…" if len(story.payload) > _SHOWN else ""
        kind = "" if story.payload_encoding == "utf-8" else f" ({story.payload_encoding})"
        say(f"payload{kind}: {story.payload[:_SHOWN]}{more}")
