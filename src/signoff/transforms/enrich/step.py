"""`enrich`: ask a web service about each event, and put its answer into new columns.

The requests are made on executors, inside the plan (see `calls`): one for each event that is alive at
this step, or one for several of them. An event for which the service does not answer, or says that it cannot
now, has failed for now: it waits (see `engine.batch.step_retries`), its neighbours go on. Whatever else
the service says is final: an answer, nothing there (`on_missing`), or an error.

A request is repeated for an event that is computed again: after a crash, and for a sink that is asked again.
So it should be one that may be repeated; `cache` spares most of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from string import Formatter
from typing import Annotated, ClassVar, Literal, Self

import httpx
from pydantic import BeforeValidator, Field, SecretStr, model_validator
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StringType, StructField, StructType

from signoff.bounded_http import host_and_port, require_sendable
from signoff.pipeline.model import Config, Names, Retry
from signoff.pipeline.secrets import SecretUrl, Token, reveal
from signoff.transforms.contract import FieldError, Step, Transform
from signoff.transforms.enrich.calls import ANSWER, Calls, arrow_function, open_client
from signoff.transforms.frame import Frame, View
from signoff.transforms.parsing.parse_json import CORRUPT, DescribeJson, parse_schema


class Cache(Config):
    """Answers that are remembered by each worker process."""

    seconds: float = Field(gt=0)
    """How long an answer is good for."""
    entries: int = Field(default=10_000, ge=1)
    """Most answers that are remembered; the ones not used for longest go first."""


def _null_is_a_word(value: object) -> object:
    return "null" if value is None else value


class EnrichConfig(Transform):
    summary: ClassVar[str] = "Ask a web service about each event, and add its answer as columns."
    example: ClassVar[str] = """\
url: "https://stations.example/v1/stations/{stationId}"
headers: {Authorization: "Bearer ${STATIONS_TOKEN}"}
schema: name STRING, region STRING
on_missing: "null"
timeout_s: 5
cache: {seconds: 300}
"""

    type: Literal["enrich"] = "enrich"
    url: SecretUrl
    """Address of the service. `{column}` stands for the value of a column, encoded for an address; a
    password in it is never shown."""
    method: Literal["GET", "POST", "PUT"] = "GET"
    """The HTTP method of each request."""
    headers: dict[str, SecretStr] = Field(default={})
    """Further headers of each request; the values are never shown."""
    token: Token | None = None
    """Sent as `Authorization: Bearer …`."""
    body: Names = ()
    """Columns that are sent as a JSON object; `*` for all. Not with GET."""
    batch: int = Field(default=1, ge=1, le=10_000)
    """Events asked about with one request. With more than 1 the body is a JSON array of objects, and the
    answer must be an array with one element for each, in the same order; null for what the service does not
    know."""
    schema_: str | None = Field(default=None, alias="schema")
    """Fields and types of the JSON object in the answer; they become columns, in place of those with the
    same names."""
    into: str | None = None
    """Column for the whole answer: its text, or with `schema` a struct of the fields."""
    on_missing: Annotated[Literal["null", "drop", "error"], BeforeValidator(_null_is_a_word)] = "error"
    """What becomes of an event the service does not know (404): `null`, it goes on with nulls; `drop`; or
    `error`, and `on_error` applies."""
    timeout_s: float = Field(default=10.0, gt=0, le=600)
    """How long a request may take, from the connection to the end of the answer."""
    max_answer_bytes: int = Field(default=16 * 1024**2, ge=1)
    """Longest answer to a request, unpacked; a longer one is an error."""
    concurrency: int = Field(default=4, ge=1, le=64)
    """Requests at once in each task."""
    tries: int = Field(default=3, ge=1, le=10)
    """Requests made one after the other about an event for which the service fails, within two seconds and
    with waits as its Retry-After says, or as `retry` does, before the event has to wait."""
    retry: Retry = Retry()
    """How often, and how patiently, an event that waits is asked about again. After the last of its
    `attempts`, `on_error` applies."""
    cache: Cache | None = None
    """Whether answers are remembered, and not asked for again; null asks each time."""
    verify_tls: bool = True
    """Whether the server's certificate must be valid."""

    def connects_to(self) -> tuple[str, int] | None:
        return host_and_port(self.url.get().partition("{")[0])

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        places = self.places  # raises ValueError for braces that do not match
        require_sendable(self.headers, self.token)
        if self.into is None and self.schema_ is None:
            raise ValueError('say where the answer goes: "into" a column, or into those of a "schema"')
        if self.method == "GET" and self.body:
            raise ValueError('a GET has no body: use "method: POST", or columns in the address')
        if self.batch > 1 and not self.body:
            raise ValueError('several events in one request need a "body", and a method that has one')
        if self.batch > 1 and places:
            raise ValueError(
                'an address with columns in it is of one event: leave out "batch" or the columns'
            )
        return self

    @property
    def places(self) -> list[str]:
        """The columns in the address, in order."""
        return [name for _, name, _, _ in Formatter().parse(self.url.get()) if name is not None]

    @property
    def may_answer_otherwise(self) -> bool:
        return True

    @property
    def calls_out(self) -> bool:
        return True

    def open_client(self) -> httpx.Client:
        """Executor: what requests are sent with."""
        return open_client(self)

    def compile(self, step: Step, view: View) -> Mapping[str | None, View]:
        self._check_url()
        call = F.arrow_udf(arrow_function(Calls(self, self._key(step))), ANSWER).asNondeterministic()
        # Spark evaluates Python functions before it looks at conditions: a row that is not alive here
        # arrives as null, and no request is made.
        event = F.struct(self._values(view).alias("values"), self._body(view).alias("body"))
        asked = call(F.when(F.col(view.alive), event))
        frame = view.frame
        answer = frame.compute(view, {"answer": asked}, guarded=False)["answer"]
        text, error = F.col(answer)["text"], F.col(answer)["error"]
        found = frame.compute(view, {"text": text, "error": error, "alive": error.isNull()})
        frame.add_error(step.name, found["error"], self.on_error, answers=True)
        answered = View(frame, found["alive"], view.columns)
        if self.schema_ is None:
            assert self.into is not None
            return {None: View(frame, answered.alive, {**view.columns, self.into: found["text"]})}
        return {None: self._typed(step, answered, found["text"], parse_schema(self.schema_))}

    def _typed(self, step: Step, view: View, text: str, schema: StructType) -> View:
        frame = view.frame
        with_corrupt = StructType([*schema.fields, StructField(CORRUPT, StringType())])
        options = {"columnNameOfCorruptRecord": CORRUPT, "mode": "PERMISSIVE"}
        value = frame.compute(view, {"value": F.from_json(F.col(text), with_corrupt, options)})["value"]
        misfit = F.col(text).isNotNull() & (F.col(value).isNull() | F.col(value)[CORRUPT].isNotNull())
        error = frame.compute(view, {"misfit": F.when(misfit, F.col(text))})["misfit"]
        frame.add_error(step.name, error, self.on_error, _Misfit(DescribeJson(schema, None)))
        alive = frame.compute(view, {"alive": F.col(error).isNull()})["alive"]
        return View(frame, alive, {**view.columns, **self._fields(frame, alive, value, text, schema)})

    def _fields(self, frame: Frame, alive: str, value: str, text: str, schema: StructType) -> dict[str, str]:
        fields = {name: F.col(value)[name] for name in schema.names}
        if self.into is not None:
            whole = F.struct(*(column.alias(name) for name, column in fields.items()))
            fields = {self.into: F.when(F.col(text).isNotNull(), whole)}
        return frame.compute(View(frame, alive, {}), fields)

    def _values(self, view: View) -> Column:
        _known("url", self.places, view)
        values = [F.col(name).cast("string") for name in self.places]
        return F.array(*values) if values else F.array().cast("array<string>")

    def _body(self, view: View) -> Column:
        names = [name for given in self.body for name in (view.columns if given == "*" else (given,))]
        _known("body", names, view)
        if not names:
            return F.lit(None).cast("string")
        return F.to_json(F.struct(*dict.fromkeys(names)), {"ignoreNullFields": "false"})

    def _check_url(self) -> None:
        try:
            url = httpx.URL(self.url.get())
        except httpx.InvalidURL as error:
            raise FieldError("url", "bad-value", f"{self.url} is not a valid address: {error}") from None
        if url.scheme not in ("http", "https") or not url.host:
            raise FieldError("url", "bad-value", f"{self.url} is not an http:// or https:// address")

    def _key(self, step: Step) -> str:
        """Tells the connections and the cache of this step from those of others in one worker process."""
        text = json.dumps(reveal(self), sort_keys=True)
        return f"{step.name} {hashlib.sha256(text.encode()).hexdigest()}"


def _known(field: str, names: Iterable[str], view: View) -> None:
    for name in names:
        if name not in view.columns:
            hint = f"there is: {', '.join(view.columns)}"
            raise FieldError(field, "unresolved-column", f'there is no column "{name}"', hint)


class _Misfit:
    """Says what is wrong with an answer that is JSON but not what the schema says."""

    def __init__(self, describe: DescribeJson) -> None:
        self.describe = describe

    def __call__(self, text: str) -> str:
        return f"the answer of the service does not fit: {self.describe(text)}"
