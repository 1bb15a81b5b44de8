"""`fold`: several events of one key become one: up to a certain one, a number of them, or for a time.

What is computed where (see docs/decisions/0010):

    the source's query     whether an event ends its group (`until`)                     `FoldInput`
    a streaming query      events kept in Spark's state store until their group ends     `signoff.stateful`
    the results' query     the columns of the result, from the group                     `FoldOutput`

So what users write is computed where an error is that of one event, or of one result.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    IntegerType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from signoff.pipeline.durations import Duration
from signoff.pipeline.model import Names, OnFailure
from signoff.transforms.contract import FieldError, Step, Transform
from signoff.transforms.fold.groups import Rules
from signoff.transforms.frame import CHILD, RECEIVED_AT, SEQUENCE, View, begin_again
from signoff.transforms.parsing.parse_json import parse
from signoff.transforms.window.step import check_simple_keys

UNTIL, AT = "__until", "__at"
"""Columns that are handed on with an event: whether it ends its group, and when it was received."""
EVENTS = "events"
_OF_GROUPS: Mapping[str, DataType] = {
    "folded": IntegerType(),
    "ended_by": StringType(),
    "first_at": TimestampType(),
    "last_at": TimestampType(),
}


class FoldConfig(Transform):
    summary: ClassVar[str] = "Fold several events of one key into one: by condition, count or timeout."
    example: ClassVar[str] = (
        "keys: [orderId]\nuntil: state = 'done'\ntimeout: 10m\n"
        "columns: {states: events.state, number: folded}\n"
    )
    type: Literal["fold"] = "fold"
    keys: Names = Field(min_length=1)
    """Columns: events with the same values in all of them are folded into one. They are columns of the
    result."""
    until: str | None = None
    """Spark SQL condition over the columns of an event. The event for which it is true ends its group, and is
    part of it."""
    count: Annotated[int, Field(ge=1)] | None = None
    """A group ends with so many events."""
    timeout: Annotated[Duration, Field(ge=0.001)] | None = None
    """A group ends so long after its first event came here (by the clock, not by the time of events). A
    group that is open keeps its deadline when this is changed."""
    columns: dict[str, str] | None = Field(default=None, min_length=1)
    """`name: expression` pairs of Spark SQL over the group: `events` (its events, an array of structs, in the
    order they came), the keys, `folded` (their number), `ended_by` (`until`, `count` or `timeout`),
    `first_at` and `last_at` (times of receipt). `size(events)`, `events[0].value`,
    `aggregate(events.value, 0D, (a, b) -> a + b)`. Without: all of these."""
    acknowledge: Literal["save_point", "delivered"] = "save_point"
    """When an event is settled: `save_point`, when it is in the fold's durable state; `delivered`, when the
    result it went into is delivered."""

    @model_validator(mode="after")
    def _fits(self) -> FoldConfig:
        if self.until is None and self.count is None and self.timeout is None:
            raise ValueError('no group would ever end: give at least one of "until", "count" and "timeout"')
        taken = [EVENTS, *_OF_GROUPS]
        if wrong := next((key for key in self.keys if key in taken), None):
            raise ValueError(f'a key is called "{wrong}", as a part of the group is; rename it with a select')
        if twice := next((name for name in self.columns or () if name in self.keys), None):
            raise ValueError(f'two columns of the result are called "{twice}": the keys are among them')
        return self

    @property
    def settles(self) -> bool:
        return self.acknowledge == "save_point"

    @property
    def holds(self) -> Mapping[str, float]:
        return {"timeout": self.timeout or 0.0} if self.acknowledge == "delivered" else {}

    @property
    def lets_go(self) -> bool:
        return self.timeout is not None

    @property
    def lets_go_by(self) -> str:
        return "timeout"

    def rules(self, name: str) -> Rules:
        return Rules(name, self.count, None if self.timeout is None else max(round(self.timeout * 1000), 1))

    def compile(self, step: Step, view: View) -> Mapping[str | None, View]:
        """The step as a whole, over a batch: what its columns are, and whether Spark accepts it."""
        (handed,) = FoldInput(fold=self).compile(step, view).values()
        schema = group_schema(handed.frame.schema_of(handed))
        frame = handed.frame
        made = frame.cut(handed).select(
            SEQUENCE,
            CHILD,
            RECEIVED_AT,
            *(F.lit(None).cast(field.dataType).alias(field.name) for field in schema),
        )
        return {None: _result(self, step, begin_again(made, schema.names, frame), self.on_error)}


class FoldInput(Transform):
    """The part of a fold in front of its state. Made by the engine, never written by users."""

    type: Literal["fold_input"] = "fold_input"
    fold: FoldConfig

    def compile(self, step: Step, view: View) -> Mapping[str | None, View]:
        check_simple_keys(self.fold.keys, view)
        frame = view.frame
        until = F.lit(False) if self.fold.until is None else F.expr(self.fold.until)
        kind = frame.scoped(view).select(until.alias("u")).schema["u"].dataType
        if not isinstance(kind, BooleanType):
            message = f"the condition is {kind.simpleString()}, not true or false"
            raise FieldError("until", "type-error", message, "compare it with something")
        ended = {"until": F.coalesce(until, F.lit(False))}
        whole, made = frame.attempt(step.name, view, ended, self.on_error)
        at = frame.compute(whole, {AT: F.unix_micros(F.col(RECEIVED_AT))})
        return {None: View(frame, whole.alive, {**view.columns, UNTIL: made["until"], **at})}


class FoldOutput(Transform):
    """The part of a fold behind its state. Made by the engine, never written by users."""

    type: Literal["fold_output"] = "fold_output"
    fold: FoldConfig
    columns: str
    """The schema of a group, as Spark writes it in JSON."""

    def compile(self, step: Step, view: View) -> Mapping[str | None, View]:
        schema = StructType.fromJson(json.loads(self.columns))
        return {None: _result(self.fold, step, parse(step, view, schema, self.on_error), self.on_error)}


def group_schema(handed: Mapping[str, DataType]) -> StructType:
    """A group as JSON in the log behind the state. `handed`: the columns `FoldInput` gives."""
    event = StructType([StructField(n, kind) for n, kind in handed.items() if n not in (UNTIL, AT)])
    fields = {EVENTS: ArrayType(event), **_OF_GROUPS}
    return StructType([StructField(name, kind) for name, kind in fields.items()])


def _result(fold: FoldConfig, step: Step, group: View, policy: OnFailure) -> View:
    """The columns of the result, from those of the group."""
    frame = group.frame
    keys = frame.compute(group, {key: F.col(EVENTS)[0][key] for key in fold.keys})
    whole = View(frame, group.alive, {**keys, **group.columns})
    if fold.columns is None:
        return whole
    made = {name: F.expr(text) for name, text in fold.columns.items()}
    right, values = frame.attempt(step.name, whole, made, policy)
    return View(frame, right.alive, {**keys, **values})
