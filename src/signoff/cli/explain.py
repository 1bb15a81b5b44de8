"""`signoff explain`: where one event is, and why it is not acknowledged."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from signoff.cli.reading import AsJson, PipelineFile, dash, load_for_reading, table, when
from signoff.cli.terminal import say
from signoff.ledger.explain import Explanation, explain
from signoff.ledger.outcome import EventId
from signoff.link.lookup import rows_in_buffers
from signoff.log import LogReader
from signoff.state.key_index import reasons_to_wait

_SHOWN = 500
"""Characters of a payload that are shown; `--json` has all of it."""


def command(
    file: PipelineFile,
    event_id: Annotated[
        str, typer.Argument(metavar="EVENT_ID", help="Such as incoming/17, or incoming/17/3 for a row of it.")
    ],
    as_json: AsJson = False,
) -> None:
    """Tell the story of one event: its state, each sink's part in it, its dead letters, its rows in buffers.

    Exits with 1 when there is no such event.
    """
    graph = load_for_reading(file)
    waits_for = reasons_to_wait(graph.state)
    try:
        story = explain(graph, event_id, LogReader, waits_for)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="EVENT_ID") from None
    rows = [
        explain(graph, str(row), LogReader, waits_for)
        for row in rows_in_buffers(graph.state, EventId.parse(event_id))
    ]
    if as_json:
        found = _as_dict(story) | {"buffered": [_as_dict(row) for row in rows]}
        say(json.dumps(found, ensure_ascii=False))
    else:
        _print(story)
        for row in rows:
            say("")
            _print(row)
    if story.state == "unknown":
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


def _as_dict(story: Explanation) -> dict[str, Any]:
    result: dict[str, Any] = {
        name: getattr(story, name)
        for name in ("event_id", "state", "acknowledged", "why", "received_at", "payload", "payload_encoding")
    }
    result["headers"] = dict(story.headers)
    result["stages"] = [
        {"stage": x.stage, "event_id": x.event_id, "state": x.state, "text": x.text} for x in story.lines
    ]
    result["dead_letters"] = [
        {"event_id": x.event_id, "stage": x.stage, "reason": x.reason, "status": x.status, "at": when(x.at),
         "attempts": x.attempts, "first_reason": x.first_reason, "replay": x.result}
        for x in story.letters
    ]  # fmt: skip
    return result
