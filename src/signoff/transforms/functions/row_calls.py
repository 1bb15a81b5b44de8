"""A Python function that is called with each row of a plan: `python` with `mode: rows`, and plug-ins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType, Row, StringType, StructField, StructType

from signoff.pipeline.model import OnFailure
from signoff.transforms.contract import Step
from signoff.transforms.frame import SEQUENCE, View
from signoff.transforms.functions.arrow_calls import Call, arrow_udf
from signoff.transforms.functions.black_box import EVENT, Recorded
from signoff.transforms.functions.values import Fields
from signoff.transforms.row_results import Drop, Fail, RowResult, answer_of, result_text

Made = dict[str, Any]
"""A row that goes on, or what the function said of it."""

RowFunction = Callable[[dict[str, Any]], Any]


def compile_rows(
    step: Step, view: View, function: RowFunction, schema: StructType, policy: OnFailure
) -> View:
    """Call the function with each row alive at `view`; the rows it returns have the columns of `schema`."""
    frame = view.frame
    item = StructType(
        [
            StructField("child", StringType()),
            StructField(
                "value", StructType([StructField("value", schema), StructField("error", StringType())])
            ),
        ]
    )
    call: Call = RowCall(function, Fields(schema))
    fields: list[Column] = [F.col(name) for name in view.columns]
    if step.black_box is not None:
        call = Recorded(call, step.name, step.black_box)
        fields.append(F.col(SEQUENCE).alias(EVENT))
    event = F.struct(*fields)
    given = frame.scoped(view).select(event.alias("event")).schema["event"].dataType
    run = arrow_udf(call, given, ArrayType(item))
    # Spark evaluates Python functions before it looks at conditions: a row that is not alive here
    # arrives as null instead of being left out.
    children = run(F.when(F.col(view.alive), event))
    alive, value = frame.multiply(view, children, step.name)
    new = View(frame, alive, {})
    columns = frame.compute(new, {"ok": F.col(value)["error"].isNull(), "error": F.col(value)["error"]})
    frame.add_error(step.name, columns["error"], policy, answers=True)
    rows = View(frame, columns["ok"], {})
    values = frame.compute(rows, {name: F.col(value)["value"][name] for name in schema.names})
    return View(frame, columns["ok"], values)


class RowCall:
    """The user's function on one row, on an executor: its exception becomes data."""

    def __init__(self, function: RowFunction, fields: Fields) -> None:
        self.function, self.fields = function, fields

    def __call__(self, row: Row | None) -> list[Made]:
        if row is None:
            return []
        try:
            result = self.function(row.asDict(recursive=True))
            if result is None:
                return []
            if isinstance(result, Mapping | Drop | Fail):
                return [_made(None, self._one(result))]
            return [_made(str(index), self._one(item)) for index, item in enumerate(result)]
        except BaseException as error:  # noqa: BLE001 - whatever user code raises is this row's dead letter
            return [_made(None, (None, answer_of(error)))]

    def failed(self, _row: Any, reason: str) -> list[Made]:
        """Its row could not be read, or what was made of it not be written."""
        return [_made(None, (None, result_text(RowResult.FAILED, reason)))]

    def _one(self, item: Any) -> tuple[Any, str | None]:
        return (None, answer_of(item)) if isinstance(item, Drop | Fail) else (self.fields(item), None)


def _made(child: str | None, result: tuple[Any, str | None]) -> Made:
    value, error = result
    return {"child": child, "value": {"value": value, "error": error}}
