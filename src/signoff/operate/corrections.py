"""Corrected events, to be resubmitted: one that is named, or many lines that `export` wrote.

Everything is looked at before anything is sent: one line that cannot be used, and none of them is.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from signoff.errors import RequestError, StateError
from signoff.jobs.letters import run_obstacles
from signoff.ledger import DeadLetter, DeadLetters, EventId, Ledger
from signoff.ledger.explain import as_text
from signoff.ledger.letter import OPEN
from signoff.ledger.resubmission import resubmit, why_not
from signoff.operate.letter_choice import checked
from signoff.pipeline.graph import Graph
from signoff.pipeline.model import SourceConfig

_SHOWN = 10
"""Problems of a file that are told."""
_LINE = 60
"""Characters of a line that are told."""


@dataclass(frozen=True)
class Correction:
    """A letter, and what takes its place."""

    letter: DeadLetter
    payload: bytes
    headers: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Resubmitted:
    """What was put into the places of letters."""

    new: tuple[DeadLetter, ...]
    """The letters of the corrected events; each names the old one (`NAMES` in its headers)."""
    taken: tuple[str, ...]
    """Why others were not: somebody else had the letter meanwhile."""


def letter_to_correct(letters: DeadLetters, event_id: str, stage: str | None) -> DeadLetter:
    """The open letter that is meant. Raises RequestError if that is none, or several, or cannot be
    resubmitted."""
    found = [x for x in letters.get(checked(event_id), stage) if x.status in OPEN]
    if not found:
        raise RequestError(_not_open(letters, event_id), "event_id")
    if len(found) > 1:
        stages = ", ".join(letter.stage for letter in found)
        raise RequestError(f"{event_id} has several letters: name one with --stage ({stages})")
    if why := why_not(found[0]):
        raise RequestError(why, "event_id")
    return found[0]


def correct(
    graph: Graph,
    letters: DeadLetters,
    event_id: str,
    stage: str | None,
    payload: bytes,
    headers: Mapping[str, str] | None = None,
) -> Correction:
    """A corrected payload for one letter, which is looked at. Raises RequestError when it cannot be used."""
    old = letter_to_correct(letters, event_id, stage)
    if why := unfit_payload(graph, old, some(payload)):
        raise RequestError(why, "payload")
    return Correction(old, payload, headers)


def some(payload: bytes) -> bytes:
    """The payload. Nothing is what a command before a pipe leaves that has failed; it takes no event's
    place."""
    if not payload.strip():
        raise RequestError(
            "the corrected payload is empty; to give the event up: dead-letters drop", "payload"
        )
    return payload


def resubmit_all(graph: Graph, letters: DeadLetters, corrections: Sequence[Correction]) -> Resubmitted:
    """Put corrected events into the places of their letters. Their own letters are stored, to be replayed."""
    of_run = run_obstacles(graph.state)
    if why := next((why for one in corrections if (why := of_run(one.letter))), ""):
        raise RequestError(why)
    new, taken = [], []
    with Ledger(graph.state / "ledger.db") as ledger:
        for one in corrections:
            try:
                new.append(resubmit(ledger, letters, one.letter, one.payload, one.headers))
            except StateError as error:  # somebody has it meanwhile; the others go on
                taken.append(str(error))
    return Resubmitted(tuple(new), tuple(taken))


def _not_open(letters: DeadLetters, event_id: str) -> str:
    """That there is no such letter; with those of the events that took its place, if they failed too."""
    event = EventId.parse(event_id)
    same = letters.of_origin(event.source, event.sequence)
    others = dict.fromkeys(x.event_id for x in same if x.status in OPEN and x.event_id != event_id)
    hint = f"; open is {', '.join(others)}" if others else ""
    return f"there is no open dead letter of {event_id}{hint}"


def unfit_payload(graph: Graph, letter: DeadLetter, payload: bytes) -> str:
    """Why a source could never have given an event with this payload; '' if it could."""
    node = graph.nodes.get(letter.source)
    if node is None or not isinstance(node.config, SourceConfig) or node.config.typed_rows is None:
        return ""
    try:
        if isinstance(json.loads(payload), dict):
            return ""
    except ValueError:
        pass
    like = first_line(as_text(letter.payload)[0])
    return (
        f'an event of "{letter.source}" is a row of CSV, and its payload a JSON object of the columns by '
        f"their names, not a line of the file; it was: {like}"
    )


def read_corrections(graph: Graph, letters: DeadLetters, text: str) -> tuple[list[Correction], int]:
    """What lines say that `export` wrote and somebody has edited; and how many of them nobody has changed.

    Raises RequestError, with the lines, when any of it cannot be used.
    """
    found: dict[tuple[str, str], Correction] = {}
    unchanged, problems = 0, list[str]()
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            correction = _correction(graph, letters, line)
            if correction.letter.key in found:
                raise RequestError(f"{correction.letter.event_id} is there twice")
        except RequestError as error:
            problems.append(f"line {number}: {error}")
            continue
        letter, headers = correction.letter, correction.headers
        if correction.payload == letter.payload and headers in (None, dict(letter.headers)):
            unchanged += 1
        else:
            found[letter.key] = correction
    if problems:
        more = f"\n… and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        told = "\n".join(problems[:_SHOWN])
        raise RequestError(f"nothing was sent:\n{told}{more}", "lines")
    return list(found.values()), unchanged


def _correction(graph: Graph, letters: DeadLetters, line: str) -> Correction:
    try:
        fields: Any = json.loads(line)
    except ValueError as error:
        raise RequestError(f"not JSON: {error}") from None
    texts = ("event_id", "payload")
    if not isinstance(fields, dict) or not all(isinstance(fields.get(name), str) for name in texts):
        raise RequestError("not as `dead-letters export` writes it: event_id and payload are texts")
    letter = letter_to_correct(letters, fields["event_id"], fields.get("stage"))
    payload = _payload(fields)
    if not payload.strip():
        raise RequestError(
            "the corrected payload is empty; to give the event up: dead-letters drop, and remove the line"
        )
    if payload != letter.payload and (why := unfit_payload(graph, letter, payload)):
        raise RequestError(why)
    headers = fields.get("headers")
    if headers is not None and not (
        isinstance(headers, dict) and all(isinstance(value, str) for value in headers.values())
    ):
        raise RequestError("headers are not texts by name")
    return Correction(letter, payload, headers)


def _payload(fields: Mapping[str, Any]) -> bytes:
    if fields.get("payload_encoding") != "base64":
        return str(fields["payload"]).encode()
    try:
        return base64.b64decode(fields["payload"], validate=True)
    except binascii.Error as error:
        raise RequestError(f"the payload is not base64: {error}") from None


def first_line(text: str) -> str:
    """As much of it as fits into a table."""
    first = text.splitlines()[0] if text else ""
    return first if len(first) <= _LINE else first[: _LINE - 1] + "…"
