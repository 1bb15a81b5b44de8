"""The values of a run, and the key by which it is known."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time
from typing import Any
from urllib.parse import quote

from signoff.errors import PipelineError, Problem
from signoff.pipeline.graph import Graph
from signoff.pipeline.job_settings import Parameter, Value, read_values, text_of

_LONGEST_KEY = 120
_PLAIN = "-_.:+ "


@dataclass(frozen=True)
class Asked:
    """What a run is asked for."""

    key: str
    values: Mapping[str, Value]
    period: tuple[datetime | None, datetime | None] = (None, None)

    def about(self, period: str) -> Asked:
        """The same, about the time between two moments: `2021-05-01T00:00Z/2021-05-02T00:00Z`."""
        begin, end = (datetime.fromisoformat(moment).astimezone(UTC) for moment in period.split("/"))
        return replace(self, period=(begin, end))


def asked(graph: Graph, given: Mapping[str, object]) -> Asked:
    """What a run with these values is. Raises PipelineError for a value that is missing or wrong."""
    declared = graph.settings.parameters
    try:
        values = read_values(declared, given)
    except ValueError as error:
        hint = "give it with -p name=value"
        problems = [Problem("bad-parameter", text, hint, graph.file) for text in str(error).splitlines()]
        raise PipelineError(problems) from None
    chosen = graph.settings.key
    keys = tuple(declared) if chosen is None else chosen
    return Asked(_key(graph.name, {name: values[name] for name in keys}), values, _period(graph, values))


def _key(job: str, values: Mapping[str, Value]) -> str:
    """Readable, and short enough to be the name of a directory."""
    if not values:
        return job
    text = ",".join(f"{name}={quote(text_of(value), safe=_PLAIN)}" for name, value in values.items())
    # A text "null" is not the same as null, nor "7" the same as 7; types do not change but with the job.
    if any(value is None for value in values.values()):
        text = text + "," + "".join("n" if value is None else "v" for value in values.values())
    whole = f"{job}@{text}"
    if len(whole) <= _LONGEST_KEY:
        return whole
    return f"{whole[: _LONGEST_KEY - 17]}~{hashlib.sha256(whole.encode()).hexdigest()[:16]}"


def _period(graph: Graph, values: Mapping[str, Value]) -> tuple[datetime | None, datetime | None]:
    if graph.settings.period is None:
        return (None, None)
    begin, end = (_moment(values[name]) for name in graph.settings.period)
    return (begin, end)


def _moment(value: Value) -> datetime | None:
    if isinstance(value, datetime):
        return value
    return datetime.combine(value, time(), UTC) if isinstance(value, date) else None


def to_json(values: Mapping[str, Value]) -> str:
    """Values as the record of a run keeps them."""
    plain = {name: text_of(v) if isinstance(v, date) else v for name, v in values.items()}
    return json.dumps(plain, ensure_ascii=False)


def from_json(declared: Mapping[str, Parameter], text: str) -> dict[str, Value]:
    """Values as they were when they were kept; what is no parameter any more is left out, and one that is new
    has its default. Raises PipelineError where the job does not take a value any more."""
    found: dict[str, Any] = json.loads(text)
    kept = {name: value for name, value in found.items() if name in declared}
    try:
        return read_values(declared, kept)
    except ValueError as error:
        hint = "take that back until the run is done that began with other parameters"
        said = [f"a run is not done yet: {line}" for line in str(error).splitlines()]
        raise PipelineError([Problem("bad-parameter", line, hint) for line in said]) from error
