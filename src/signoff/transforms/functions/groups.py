"""A user's function on the events of a batch that have the same keys: `python` with `mode: groups`.

It is called once for each combination of keys, with the events as a list of dicts in their order, and
returns a dict, a list of dicts, or None. Each dict is an event made of all of them; `unite` names fewer.
An event of which nothing was made is dropped. An exception is the error of every event of the group, and
so is `signoff.fail`; `signoff.drop` drops them all with a reason. Runs on executors, and again after a
crash or a retry: then it must make the same of the same events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType, LongType, Row, StringType, StructField, StructType

from signoff.pipeline.model import OnFailure
from signoff.transforms.contract import Step
from signoff.transforms.frame import CHILD, OTHERS, RECEIVED_AT, SEQUENCE, View, begin_again
from signoff.transforms.functions.arrow_calls import arrow_udf
from signoff.transforms.row_results import Drop, Fail, RowResult, answer_of, result_text
from signoff.transforms.united_rows import united_child

_ERROR, _MEMBERS, _MADE = "__error", "__members", "__made"

Made = dict[str, Any]
"""Sequence, child, others, value and error of a row that goes on."""


class Event(dict[str, Any]):
    """An event as a function on groups gets it: a dict that knows which of the group it is."""

    def __init__(self, fields: Mapping[str, Any], place: int) -> None:
        super().__init__(fields)
        self.place = place


@dataclass(frozen=True)
class United:
    """A result, and the events it is made of."""

    places: tuple[int, ...]
    result: Any


def unite(events: Iterable[Mapping[str, Any]], result: Any) -> United:
    """For a function on groups, to be returned alone or in a list: `result` is made of these events only.

    They must be the dicts the function was called with, not copies. `result` is a dict, or `signoff.drop`
    or `signoff.fail` if it is these events that end here.
    """
    chosen = list(events)
    for event in chosen:
        if not isinstance(event, Event):
            raise TypeError("unite takes the events the function was called with, not copies of them")
    if not chosen:
        raise ValueError("unite needs at least one event: nothing would be settled with the result")
    return United(tuple(sorted({event.place for event in chosen if isinstance(event, Event)})), result)


class GroupCall:
    """The user's function on one group, on an executor: its exception becomes data."""

    def __init__(self, function: Callable[[list[Event]], Any], fields: Callable[[Any], Any]) -> None:
        self.function, self.fields = function, fields

    def __call__(self, members: Sequence[Row]) -> list[Made]:
        rows = sorted(members, key=lambda row: (row["sequence"], row["child"]))
        try:
            return [*self._made(rows, self.function([*_events(rows)]))]
        except BaseException as error:  # noqa: BLE001 - whatever user code raises is the dead letter of its events
            return [*_ended(rows, answer_of(error))]

    def failed(self, members: Sequence[Mapping[str, Any]], reason: str) -> list[Made]:
        """Its events could not be read, or what was made of them not be written."""
        return [*_ended(members, result_text(RowResult.FAILED, reason))]

    def _made(self, rows: Sequence[Row], result: Any) -> Iterator[Made]:
        if result is None:
            return
        if isinstance(result, Mapping | United | Drop | Fail):
            yield from self._one(rows, result, "")
            return
        for index, item in enumerate(result):
            yield from self._one(rows, item, f"/{index}")

    def _one(self, rows: Sequence[Row], item: Any, suffix: str) -> Iterator[Made]:
        if isinstance(item, United):
            rows, item = [rows[place] for place in item.places], item.result
        if isinstance(item, Drop | Fail):
            yield from _ended(rows, answer_of(item))
            return
        child = united_child((row["sequence"], row["child"]) for row in rows) + suffix
        first, *others = sorted({origin for row in rows for origin in _origins(row)})
        yield _made(first, child, others or None, self.fields(item), None)


def compile_groups(
    step: Step, view: View, keys: Sequence[str], call: GroupCall, schema: StructType, policy: OnFailure
) -> View:
    """Add the step behind `view`."""
    rows = view.frame.cut(view)
    others = F.col(OTHERS) if OTHERS in rows.columns else F.lit(None).cast("array<bigint>")
    member = F.struct(
        F.col(SEQUENCE).alias("sequence"),
        F.col(CHILD).alias("child"),
        others.alias("others"),
        F.struct(*view.columns).alias("event"),
    )
    groups = rows.groupBy(*keys).agg(
        F.collect_list(member).alias(_MEMBERS), F.min(RECEIVED_AT).alias(RECEIVED_AT)
    )
    made = StructType(
        [
            StructField("sequence", LongType()),
            StructField("child", StringType()),
            StructField("others", ArrayType(LongType())),
            StructField("value", schema),
            StructField("error", StringType()),
        ]
    )
    given = groups.schema[_MEMBERS].dataType
    results = arrow_udf(call, given, ArrayType(made))(F.col(_MEMBERS))
    each = groups.select(RECEIVED_AT, F.explode(results).alias(_MADE))
    names = schema.names
    flat = each.select(
        F.col(_MADE)["sequence"].alias(SEQUENCE),
        F.col(_MADE)["child"].alias(CHILD),
        RECEIVED_AT,
        F.col(_MADE)["others"].alias(OTHERS),
        F.col(_MADE)["error"].alias(_ERROR),
        *(F.col(_MADE)["value"][name].alias(name) for name in names),
    )
    whole = begin_again(flat, [_ERROR, *names], view.frame)
    frame, error = whole.frame, whole.columns[_ERROR]
    frame.add_error(step.name, error, policy, answers=True)
    alive = frame.compute(View(frame, whole.alive, {}), {"ok": F.col(error).isNull()})["ok"]
    return View(frame, alive, {name: whole.columns[name] for name in names})


def _events(rows: Sequence[Row]) -> Iterator[Event]:
    for place, row in enumerate(rows):
        yield Event(row["event"].asDict(recursive=True), place)


def _made(sequence: int, child: str, others: list[int] | None, value: Any, error: str | None) -> Made:
    return {"sequence": sequence, "child": child, "others": others, "value": value, "error": error}


def _ended(rows: Iterable[Any], error: str) -> Iterator[Made]:
    """Each of the rows as it came, with the same error."""
    for row in rows:
        yield _made(row["sequence"], row["child"], row["others"], None, error)


def _origins(row: Row) -> list[int]:
    return [row["sequence"], *(row["others"] or ())]
