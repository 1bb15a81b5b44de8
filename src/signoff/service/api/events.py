"""Events: where one is, dead letters, buffers."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from signoff.ledger.letter import OPEN
from signoff.operate.buffers import list_buffers
from signoff.operate.event_story import read_story
from signoff.operate.letter_choice import Choice, choice
from signoff.operate.letters import EVERY, drop_chosen, each_letter
from signoff.operate.replay import request_replay
from signoff.pipeline.graph import Graph
from signoff.service.api.answers import Model, failed
from signoff.service.api.endpoint import JSON, Answer, Call, Endpoints

endpoints = Endpoints()
ONE = "/v1/pipelines/{name}"
_LONGEST_ID = 500
_MOST_PAYLOAD_BYTES = 4 * 1024**2
"""Of the letters of one answer, or a letter more: an answer is in memory as a whole, several times."""
Text = Field(default=None, max_length=1000, pattern=r"\S")


class LetterQuery(Model):
    """Which dead letters."""

    stage: str | None = Text
    """Only letters of this transform, sink or source."""
    source: str | None = Text
    """Only letters of events of this source."""
    reason: str | None = Text
    """Only reasons that hold this text."""
    since: str | None = Text
    """Only those that failed at this time or later: 2026-11-15T10:00:00Z, 2026-11-15, or 2h for two hours
    ago."""
    until: str | None = Text
    """Only those that failed before."""
    closed: bool = False
    """Also those that were replayed or dropped."""
    payloads: bool = False
    """With payload and headers; at most 4 MiB of payloads, or a letter more."""
    limit: int = Field(default=100, ge=1, le=1000)
    """At most so many, the oldest first; `more` says whether there are others."""


class LetterChoice(Model):
    """Which dead letters: at least one field says so, or `all`."""

    event_ids: list[str] = Field(default=[], max_length=10_000)
    stage: str | None = Text
    source: str | None = Text
    reason: str | None = Text
    since: str | None = Text
    until: str | None = Text
    all: bool = False
    """Every letter that is stored."""


@endpoints.add("GET", ONE + "/events/{event_id}", "view", JSON)
def explain(call: Call) -> Answer:
    """What `signoff explain --json` says of one event, such as incoming/17: where it is and why, with its
    payload."""
    story = read_story(_graph(call), call.path["event_id"])
    if not story.known:
        raise failed(
            404, "no-event", f"there is no event {call.path['event_id'][:_LONGEST_ID]}", at="event_id"
        )
    return Answer(story.to_json())


@endpoints.add("GET", f"{ONE}/dead-letters", "view", JSON, query=LetterQuery)
def list_letters(call: Call) -> Answer:
    """The dead letters that are stored or being replayed, the oldest first."""
    asked = call.query
    chosen = choice(None, asked.stage, asked.source, asked.reason, None, asked.since, asked.until)
    statuses = EVERY if asked.closed else OPEN
    stored = each_letter(
        _graph(call), chosen, statuses=statuses, limit=asked.limit + 1, brief=not asked.payloads
    )
    found: list[dict[str, Any]] = []
    size, more = 0, False
    for each in stored:
        if more := len(found) == asked.limit or size > _MOST_PAYLOAD_BYTES:
            break
        size += len(each.letter.payload)
        found.append({name: value for name, value in each.to_json().items()
                      if asked.payloads or name not in ("payload", "headers")})  # fmt: skip
    return Answer({"dead_letters": found, "more": more})


@endpoints.add(
    "POST", f"{ONE}/dead-letters/replay", "operate", {202: JSON}, body=LetterChoice, changes="replay letters"
)
def replay(call: Call) -> Answer:
    """Have the run send letters again, only to what failed; if there is no run, when there is one."""
    replayed = request_replay(_graph(call), _choice(call.body))
    unfit = [{"event_id": key[0], "stage": key[1], "reason": why} for key, why in replayed.unfit.items()]
    asked = len(replayed.letters)
    return Answer({"asked": asked, "requested": asked - len(unfit), "not_replayable": unfit}, 202)


@endpoints.add("POST", f"{ONE}/dead-letters/drop", "operate", JSON, body=LetterChoice, changes="drop letters")
def drop(call: Call) -> Answer:
    """Give letters up: their events count as dropped. One that the run is about to replay is left alone."""
    return Answer(drop_chosen(_graph(call), _choice(call.body)).to_json())


@endpoints.add("GET", f"{ONE}/buffers", "view", JSON)
def buffers(call: Call) -> Answer:
    """What waits in the buffers of sinks, and how full they are."""
    return Answer({"buffers": {name: each.as_dict() for name, each in list_buffers(_graph(call)).items()}})


def _graph(call: Call) -> Graph:
    return call.tenant.graph(call.pipeline().name)


def _choice(asked: LetterChoice) -> Choice:
    """Nothing is replayed or dropped because somebody forgot to say what."""
    chosen = choice(asked.event_ids, asked.stage, asked.source, asked.reason, None, asked.since, asked.until)
    if not chosen and not asked.all:
        raise failed(422, "bad-request", "no letters are named", "name event_ids, stage, …, or all: true")
    return chosen
