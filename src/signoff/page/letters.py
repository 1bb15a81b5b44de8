"""The pages of dead letters: grouped, searched, one by one; and what is done to them."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from itertools import islice
from typing import Any
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.responses import Response

from signoff.errors import RequestError
from signoff.ledger import DeadLetter
from signoff.ledger.letter import OPEN
from signoff.ledger.letter_filter import LetterFilter
from signoff.ledger.resubmission import why_not
from signoff.operate.corrections import correct, resubmit_all
from signoff.operate.letter_choice import Choice, checked
from signoff.operate.letters import (
    EVERY,
    StoredLetter,
    drop_chosen,
    find_letters,
    group_letters,
    obstacles,
    open_letters,
    open_of_choice,
)
from signoff.operate.replay import Replay, letters_to_replay, read_replay, request_replay
from signoff.page.forms import Form
from signoff.page.rendering import shown
from signoff.page.visits import Visit
from signoff.terminal import written_out

PAGE = 50
_DIGITS = 10
"""A page with so many is none."""
_MOST_GROUPS = 200
_MOST_NAMED = 5
"""Letters that are named before they are replayed or dropped."""
_MOST_ENDS = 200
"""Letters of a replay of which it is said one by one what became of them."""
_FIELDS = ("stage", "source", "reason", "text")


@dataclass(frozen=True)
class Asked:
    """Which letters somebody has asked for, in an address or in a form."""

    fields: dict[str, str]
    events: tuple[str, ...] = ()
    until: float | None = None
    """Of those that there were at this moment: not of those that have come since it was asked."""

    @classmethod
    def of(cls, form: Form) -> Asked:
        fields = {name: text for name in _FIELDS if (text := form.text(name))}
        try:
            until = None if (text := form.text("until")) is None else float(text)
        except ValueError:
            raise HTTPException(422, "until is no moment") from None
        return cls(fields, tuple(dict.fromkeys(checked(each) for each in form.all("event"))), until)

    @property
    def choice(self) -> Choice:
        text = self.fields.get("text")
        chosen = LetterFilter(
            stage=self.fields.get("stage"),
            source=self.fields.get("source"),
            reason=self.fields.get("reason"),
            payload=text.encode() if text else None,
            until=self.until,
        )
        return Choice(self.events, chosen)


def list_page(visit: Visit) -> Response:
    """Groups by stage and reason; and the letters that were asked for."""
    asked = Asked.of(visit.form)
    page = _page_number(visit.form.text("page") or "")
    closed = visit.form.text("closed") is not None
    graph = visit.pipeline.graph
    with open_letters(graph) as letters:
        unfit_for = obstacles(graph, letters)
        first = (page - 1) * PAGE
        statuses = EVERY if closed else OPEN
        each = letters.each(asked.choice.chosen, statuses=statuses, brief=True)
        found = [StoredLetter(x, unfit_for(x)) for x in islice(each, first, first + PAGE + 1)]
    groups = group_letters(graph)
    return visit.render(
        "letters.html", here="letters", groups=groups[:_MOST_GROUPS], more_groups=len(groups) - _MOST_GROUPS,
        asked=asked, page=page, closed=closed, found=found[:PAGE], more=len(found) > PAGE,
        stages=sorted({group.stage for group in groups}), total=sum(group.letters for group in groups),
    )  # fmt: skip


def letter_page(visit: Visit) -> Response:
    """All that is known of the letters of one event; with a copy of the payload to correct."""
    event, stage = visit.form.text("event"), visit.form.text("stage")
    if event is None:
        raise RequestError("say which", "event")
    return visit.render("letter.html", here="letters", **_letter(visit, event, stage), problem="", given=None)


def confirm_page(visit: Visit) -> Response:
    """What is about to be replayed or dropped, and whether it shall be."""
    visit.check_may_operate()
    action = visit.form.text("action")
    if action not in ("replay", "drop"):
        raise HTTPException(422, "replay or drop")
    asked = Asked.of(visit.form)
    if not asked.events:
        asked = Asked(asked.fields, until=time.time())
    graph = visit.pipeline.graph
    with open_letters(graph) as letters:
        chosen = open_of_choice(graph, letters, asked.choice)
        unfit_for = obstacles(graph, letters)
        unfit = sum(bool(unfit_for(letter)) for letter in chosen)
    return visit.render(
        "confirm.html", here="letters", action=action, asked=asked, number=len(chosen), unfit=unfit,
        named=chosen[:_MOST_NAMED], back=urlencode(asked.fields),
    )  # fmt: skip


def replay(visit: Visit) -> Response:
    """Leave the letters to the run, and show how far it is."""
    asked = _some(visit.form)
    return _follow(visit, request_replay(visit.pipeline.graph, asked.choice))


def drop(visit: Visit) -> Response:
    asked = _some(visit.form)
    done = drop_chosen(visit.pipeline.graph, asked.choice)
    return visit.render("dropped.html", here="letters", done=done)


def resubmit(visit: Visit) -> Response:
    """Put a corrected event into the place of a letter, and have it replayed."""
    event, stage = visit.form.text("event"), visit.form.text("stage")
    if event is None:
        raise RequestError("say which", "event")
    graph = visit.pipeline.graph
    given = visit.form.text("payload") or ""
    with letters_to_replay(graph) as letters:
        try:
            found = [x for x in letters.get(checked(event), stage) if x.status in OPEN]
            old = found[0].payload if found else b""
            if found and not may_be_edited(found[0]):
                raise RequestError("the page cannot hold this payload unchanged: use dead-letters resubmit")
            correction = correct(graph, letters, event, stage, _as_it_was(given, old))
            if correction.payload == old and not correction.letter.incomplete:
                raise RequestError(
                    "nothing was changed, and nothing was sent; to send it as it is: replay it"
                )
            done = resubmit_all(graph, letters, [correction])
        except RequestError as error:
            values = _letter(visit, event, stage)
            return visit.render(
                "letter.html", status=422, here="letters", **values, problem=str(error), given=given
            )
        if not done.new:
            raise HTTPException(409, done.taken[0])
        asked = Replay.of(graph, letters, done.new)
        letters.request_replay(done.new)
    return _follow(visit, asked)


def replay_page(visit: Visit) -> Response:
    return visit.render("replay.html", here="letters", **_replay(visit))


def replay_now(visit: Visit) -> Response:
    return visit.render("replay_now.html", **_replay(visit))


def may_be_edited(letter: DeadLetter) -> bool:
    """Whether a browser gives the payload back as it was, and nothing in it is masked."""
    try:
        text = letter.payload.decode()
    except UnicodeDecodeError:
        return False
    lines = text.replace("\r\n", "\n")
    uniform = "\r\n" not in text or text.count("\r\n") == text.count("\n")
    return uniform and "\r" not in lines and written_out(lines) == lines and shown(text) == written_out(text)


def _letter(visit: Visit, event: str, stage: str | None) -> dict[str, Any]:
    event = checked(event)
    graph = visit.pipeline.graph
    found = [
        each
        for each in find_letters(graph, Choice((event,)), statuses=EVERY)
        if stage is None or each.letter.stage == stage
    ]
    if not found:
        raise HTTPException(404, f"there is no dead letter of {event} at {stage}")
    letters = [
        {
            "letter": each.letter,
            "why_not": each.why_not,
            "is_open": each.letter.status in OPEN,
            "may_be_edited": each.letter.status in OPEN
            and not why_not(each.letter)
            and may_be_edited(each.letter),
        }
        for each in found
    ]
    return {"letters": letters, "event": event}


def _as_it_was(given: str, old: bytes) -> bytes:
    """Browsers end lines of a form with CR LF, whatever they were before."""
    text = given.replace("\r\n", "\n")
    return (text.replace("\n", "\r\n") if b"\r\n" in old else text).encode()


def _page_number(text: str) -> int:
    return max(int(text), 1) if text.isascii() and text.isdigit() and len(text) < _DIGITS else 1


def _some(form: Form) -> Asked:
    """Nothing is done to all letters because a form came without its fields."""
    asked = Asked.of(form)
    if not asked.events and asked.until is None:
        raise HTTPException(422, "say which letters")
    return asked


def _follow(visit: Visit, asked: Replay) -> Response:
    name = secrets.token_urlsafe(9)
    visit.pipeline.remember(name, asked)
    return visit.to(f"replays/{name}")


def _replay(visit: Visit) -> dict[str, Any]:
    name = visit.request.path_params["replay"]
    if (asked := visit.pipeline.replays.get(name)) is None:
        raise HTTPException(404, "this replay is not known any more; the dead letters say how each ended")
    with open_letters(visit.pipeline.graph) as letters:
        left = asked.left(letters)
    over = left == 0
    number = len(asked.letters)
    report = read_replay(visit.pipeline.graph, asked) if over or number <= _MOST_ENDS else None
    ends = [end for end in report.ends if end.outcome not in ("delivered", "replayed")] if report else []
    return {
        "replay": name,
        "number": number,
        "left": left,
        "over": over,
        "counts": {word: n for word, n in report.counts.items() if n} if report else {},
        "ends": ends[:_MOST_ENDS],
        "alive": visit.pipeline.reading().status["alive"],
    }
