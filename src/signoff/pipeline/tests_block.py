"""The `tests:` block of a pipeline: what is given to it, and what is expected to come out.

A block is checked together with the pipeline: a test that names a node the pipeline does not have is a
problem with a file and a line like any other. `signoff.testing` runs what is read here. Texts in a test are
plain data: a `${…}` in a payload is not a reference.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from signoff.errors import Line, Problem
from signoff.pipeline.draft import Draft, DraftNode
from signoff.pipeline.durations import Duration
from signoff.pipeline.model import Config, SourceConfig, TransformConfig
from signoff.pipeline.suggestions import suggestion
from signoff.pipeline.validate import validate
from signoff.pipeline.variables import Expansion

if TYPE_CHECKING:
    from signoff.pipeline.graph import Graph

DEFAULT_NOW = datetime(2100, 1, 1, tzinfo=UTC)
"""The time of a test that does not say another: the same every day, and later than the times that people
write into events, which would else be times from the future (`ahead` of a window)."""
EVENT_FIELDS = frozenset({"payload", "headers", "message_id", "received_at"})
AFTER = "after"
C = TypeVar("C", bound=Config)


def as_moment(value: object) -> object:
    """ISO 8601 as a time; without a zone it is UTC, as everywhere in Signoff."""
    if not isinstance(value, str):
        return value
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        raise ValueError(f'"{value}" is not a time; write 2026-01-31T12:00:00Z') from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


Moment = Annotated[datetime, BeforeValidator(as_moment)]


class Event(Config):
    """An event with more than its payload."""

    payload: Any
    """A text is taken as it is, anything else is written as JSON."""
    headers: dict[str, str] = Field(default={})
    message_id: str | None = None
    received_at: Moment | None = None
    """When it was received; by default the time of the test."""


class Answer(Config):
    """What a service says to an `enrich` step."""

    asked: dict[str, Any] = Field(default={})
    """Columns in the address or the body of the request; the first answer that fits all of them is given."""
    answer: Any = None
    """The body: a text as it is, anything else as JSON."""
    status: int = Field(default=200, ge=100, le=599)
    """The status; 404 is what `on_missing` is for."""


class Letter(Config):
    """A dead letter that is expected."""

    stage: str
    """The node at which it ended."""
    reason: str = ""
    """A part of its reason."""
    payload: Any = None
    """What it holds: a text, or anything else that its JSON is."""


class Totals(Config):
    """What became of all events, of all sources together. What is not named is not compared."""

    received: int | None = None
    delivered: int | None = None
    dropped: int | None = None
    dead_lettered: int | None = None
    refused: int | None = None
    in_flight: int | None = None


@dataclass(frozen=True)
class GivenEvents:
    """What comes in at once: in one batch of each source."""

    events: Mapping[str, tuple[Event, ...]]
    """By node."""
    after: float = 0.0
    """Seconds that pass before."""


def _one_or_several(value: object) -> object:
    return [value] if isinstance(value, Mapping) else value


def _rows(value: object) -> object:
    if value is None:
        return []
    if isinstance(value, bool) or not isinstance(value, list | int):
        raise ValueError("it must be a list of rows, or how many there are")
    if isinstance(value, list) and not all(isinstance(row, Mapping) for row in value):
        raise ValueError("each row must be a mapping of columns")
    return value


def _not_empty(value: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if not any(events for step in value for name, events in step.items() if name != AFTER):
        raise ValueError("no event is given")
    return value


class Case(Config):
    """One test."""

    name: str
    given: Annotated[list[dict[str, Any]], BeforeValidator(_one_or_several), AfterValidator(_not_empty)]
    """Events by source, or rows by transform. A list gives some after the others: each is a batch of its
    own, `after: 10m` lets time pass before it."""
    expect: dict[str, Annotated[Any, BeforeValidator(_rows)]] = Field(default={})
    """By sink or transform: the rows that come there, in any order, or how many. Columns that a row does not
    name are not compared."""
    letters: tuple[Letter, ...] = ()
    """The dead letters, in any order. One that is not named here fails the test."""
    drops: dict[str, int] = Field(default={})
    """Rows that end at a step or sink without being delivered, by its name."""
    account: Totals = Totals()
    """What became of the events."""
    answers: dict[str, tuple[Answer, ...]] = Field(default={})
    """What the services of `enrich` steps answer, by step."""
    failing: dict[str, str] = Field(default={})
    """Sinks that refuse every row, with the reason."""
    now: Moment = DEFAULT_NOW
    """The time at which the test begins: times of receipt, `now()` and `current_date()`."""
    at_end: Literal["close", "leave_open"] = "close"
    """`close`: windows that are open at the end are closed, and groups with a timeout end. `leave_open`: only
    the times of the events close windows."""

    @model_validator(mode="after")
    def _readable(self) -> Case:
        self.steps()
        return self

    def steps(self) -> list[GivenEvents]:
        """What is given, step by step."""
        return [_given(step) for step in self.given]


def _given(step: Mapping[str, Any]) -> GivenEvents:
    after = _Wait.model_validate({AFTER: step.get(AFTER, 0)}).after
    events = {}
    for node, items in step.items():
        if node == AFTER:
            continue
        if not isinstance(items, list):
            raise ValueError(f"`given.{node}` must be a list of events")
        events[node] = tuple(as_event(item) for item in items)
    return GivenEvents(events, after)


class _Wait(Config):
    after: Annotated[Duration, Field(ge=0)] = 0.0


def as_event(item: Any) -> Event:
    """What stands for an event: one with headers and so on, or only its payload."""
    if isinstance(item, Event):
        return item
    if isinstance(item, Mapping) and "payload" in item and item.keys() <= EVENT_FIELDS:
        return Event.model_validate(dict(item))
    return Event(payload=item)


@dataclass(frozen=True)
class Cases:
    """The tests of a pipeline, with their places in the file."""

    cases: tuple[Case, ...] = ()
    lines: Mapping[str, Line] = field(default_factory=dict)
    """Where each of them stands; its file as well, which may be another than the pipeline's."""


class _PlainData(Expansion):
    """Leaves a `${…}` as it is."""

    def __init__(self) -> None:
        self.references, self.unresolved = [], 0

    def expand(self, text: str, **_: Any) -> str:
        return text


def read_cases(draft: Draft, graph: Graph) -> tuple[Cases, list[Problem]]:
    """The tests that a draft holds, and what is wrong with them."""
    problems: list[Problem] = []
    found: list[Case] = []
    for name, node in draft.tests.items():
        label = f'test "{name}"'
        if not isinstance(node.fields, Mapping):
            problems.append(node.problem("wrong-type", f"{label} must be a mapping of fields"))
            continue
        named = DraftNode(
            node.kind, name, {"name": name, **node.fields}, node.line, node.field_lines, node.file
        )
        case, wrong = validate(Case, named, label, _PlainData())
        problems += wrong
        if case is not None:
            problems += _problems_of(case, named, label, graph)
            found.append(case)
    lines = {name: _line(node) for name, node in draft.tests.items()}
    return Cases(tuple(found), lines), problems


def _line(node: DraftNode) -> Line:
    return node.line if isinstance(node.line, Line) else Line(node.line, node.file)


def _problems_of(case: Case, node: DraftNode, label: str, graph: Graph) -> Iterator[Problem]:
    """Names that the pipeline does not have, or that stand in the wrong place."""
    transforms = {name for name, each in graph.transforms.items() if _has_rows(each.config)}
    outputs = {
        f"{name}.{output}"
        for name, each in graph.transforms.items()
        if isinstance(each.config, TransformConfig)
        for output in each.config.outputs
    }
    enriching = [name for name, each in graph.transforms.items() if each.config.type == "enrich"]
    stages = [*graph.sources, *graph.transforms, *graph.sinks]
    wanted: list[tuple[str, str, list[str]]] = []
    several = isinstance(node.fields.get("given"), list)
    for number, step in enumerate(case.given):
        at = f"given.{number}" if several else "given"
        wanted += [(f"{at}.{name}", name, [*graph.sources, *transforms]) for name in step if name != AFTER]
    wanted += [(f"expect.{name}", name, [*graph.sinks, *transforms, *outputs]) for name in case.expect]
    wanted += [(f"letters.{n}", letter.stage, stages) for n, letter in enumerate(case.letters)]
    wanted += [(f"drops.{name}", name, stages) for name in case.drops]
    wanted += [(f"answers.{name}", name, enriching) for name in case.answers]
    wanted += [(f"failing.{name}", name, list(graph.sinks)) for name in case.failing]
    for at, name, known in wanted:
        if name not in known:
            hint = suggestion(name, sorted(known), "it may be")
            message = f'{label} names "{name}" in {at.partition(".")[0]}, which is no such node'
            yield node.problem("unknown-node", message, at=at, hint=hint)
    for number, name in texts_for_columns(case, graph):
        at = f"given.{number}.{name}" if several else f"given.{name}"
        yield node.problem("bad-value", f"{label} {NOT_A_TEXT.format(name)}", at=at, hint=MAPPING_HINT)


NOT_A_TEXT = (
    'gives a text to "{}": an event of this CSV source is a mapping of its columns, '
    "as texts in the file's format"
)
MAPPING_HINT = 'write {id: "3", day: "18.11.2026"} in place of "3;18.11.2026"; without a header _c0, _c1, …'


def texts_for_columns(case: Case, graph: Graph) -> Iterator[tuple[int, str]]:
    """Steps and sources that are given a line of CSV: the source takes files apart before they are events, so
    a test gives it columns."""
    for number, step in enumerate(case.steps()):
        for name, events in step.events.items():
            config = graph.sources[name].config if name in graph.sources else None
            takes_columns = isinstance(config, SourceConfig) and config.typed_rows is not None
            if takes_columns and any(_is_no_object(event.payload) for event in events):
                yield number, name


def _is_no_object(payload: Any) -> bool:
    if not isinstance(payload, str | bytes):
        return False
    try:
        return not isinstance(json.loads(payload), dict)
    except ValueError:
        return True


def _has_rows(config: object) -> bool:
    return isinstance(config, TransformConfig) and config.has_main_output
