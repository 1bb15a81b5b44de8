"""`python`: a user's function as a step.

`frame`: DataFrame in, DataFrame out, plain PySpark. The function sees the input's columns and
`_origin`, the lineage, and must keep that column: a function that loses it is refused when the
pipeline is checked. Such a step has a plan of its own; what else hangs on the same input is read
twice.

`rows`: called with each event as a dict; returns a dict, a list of dicts, or None to drop it. An
exception is the error of that one event. `signoff.drop` and `signoff.fail` say more (see `answers`). Runs on
executors, and again after a crash or a retry: then it must split an event into the same pieces as before.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType, Row, StringType, StructField, StructType, _make_type_verifier

from signoff.pipeline.model import Retry
from signoff.transforms.answers import Answer, Drop, Fail, said
from signoff.transforms.contract import FieldError, Step, Transform
from signoff.transforms.frame import CHILD, ORIGIN, RECEIVED_AT, SEQUENCE, View, begin_again
from signoff.transforms.parse_json import parse_schema


class PythonConfig(Transform):
    summary: ClassVar[str] = "Run a function of yours: on the DataFrame, or on each event."
    drops: ClassVar[str] = "the function returned nothing"
    type: Literal["python"] = "python"
    function: str | Callable[..., Any]
    """`module:function`, found next to the pipeline file or on the Python path."""
    mode: Literal["frame", "rows"] = "frame"
    """`frame`: DataFrame to DataFrame. `rows`: dict to dict, list of dicts or None."""
    schema_: str | None = Field(default=None, alias="schema")
    """Columns and types the function returns; needed with `mode: rows`."""
    retry: Retry = Retry()
    """How often, and how patiently, the function is called again for an event it fails for now
    (`signoff.fail(…, transient=True)`)."""

    @property
    def streams(self) -> bool:
        """A function on DataFrames may do what only a stream can, such as remember."""
        return self.mode == "frame"

    def compile(self, step: Step, view: View) -> Mapping[str | None, View]:
        function = self._function(step.base)
        if self.mode == "rows":
            return {None: self._rows(step, view, function)}
        return {None: self._frame(step, view, function)}

    def _function(self, base: Path) -> Callable[..., Any]:
        if not isinstance(self.function, str):
            return self.function
        module, _, name = self.function.partition(":")
        if not name:
            raise FieldError("function", "bad-function", f'"{self.function}" is not "module:function"')
        if str(base) not in sys.path:
            sys.path.insert(0, str(base))
        try:
            found = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise FieldError(
                "function",
                "bad-function",
                f'cannot load "{self.function}": {error}',
                f"looked in {base} first",
            ) from None
        if not callable(found):
            raise FieldError("function", "bad-function", f'"{self.function}" is not a function')
        return found  # type: ignore[no-any-return]

    def _frame(self, step: Step, view: View, function: Callable[[DataFrame], DataFrame]) -> View:
        given = view.frame.cut(view)
        lineage = F.struct(SEQUENCE, CHILD, RECEIVED_AT).alias(ORIGIN)
        result = function(given.select(*view.columns, lineage))
        if not isinstance(result, DataFrame):
            raise FieldError(
                "function", "bad-function", f"the function returned {type(result).__name__}, not a DataFrame"
            )
        if ORIGIN not in result.columns:
            raise FieldError(
                "function",
                "lost-origins",
                f'the result of "{step.name}" has no column "{ORIGIN}": its events could not be acknowledged',
                f'keep the column "{ORIGIN}" in every select, and do not aggregate it away',
            )
        columns = [name for name in result.columns if name != ORIGIN]
        flat = result.select(*(F.col(f"{ORIGIN}.{n}") for n in (SEQUENCE, CHILD, RECEIVED_AT)), *columns)
        return begin_again(flat, columns, view.frame)

    def _rows(self, step: Step, view: View, function: Callable[[dict[str, Any]], Any]) -> View:
        if self.schema_ is None:
            raise FieldError("schema", "missing-field", 'mode "rows" needs "schema"', 'add "name TYPE, …"')
        frame, schema = view.frame, parse_schema(self.schema_)
        item = StructType(
            [
                StructField("child", StringType()),
                StructField(
                    "value", StructType([StructField("value", schema), StructField("error", StringType())])
                ),
            ]
        )
        # Said here: Spark would look for it in type hints, and warn that a callable object has none.
        call = F.udf(_Call(function, schema), ArrayType(item), useArrow=True)
        # Spark evaluates Python functions before it looks at conditions: a row that is not alive here
        # arrives as null instead of being left out.
        children = call(F.when(F.col(view.alive), F.struct(*view.columns)))
        alive, value = frame.multiply(view, children, step.name)
        new = View(frame, alive, {})
        columns = frame.compute(new, {"ok": F.col(value)["error"].isNull(), "error": F.col(value)["error"]})
        frame.add_error(step.name, columns["error"], self.on_error, answers=True)
        rows = View(frame, columns["ok"], {})
        fields = frame.compute(rows, {name: F.col(value)["value"][name] for name in schema.names})
        return View(frame, columns["ok"], fields)


class _Call:
    """The user's function on one row, on an executor: its exception becomes data."""

    def __init__(self, function: Callable[[dict[str, Any]], Any], schema: StructType) -> None:
        self.function, self.names = function, tuple(schema.names)
        # Without it Spark turns a value of the wrong type into null, silently.
        self.verify = _make_type_verifier(schema)

    def __call__(self, row: Row | None) -> list[tuple[str | None, tuple[Any, str | None]]]:
        if row is None:
            return []
        try:
            result = self.function(row.asDict(recursive=True))
            if result is None:
                return []
            if isinstance(result, Mapping | Drop | Fail):
                return [(None, self._one(result))]
            return [(str(index), self._one(item)) for index, item in enumerate(result)]
        except Exception as error:  # noqa: BLE001 - any exception of user code is this row's dead letter
            return [(None, (None, _answer(error)))]

    def _one(self, item: Any) -> tuple[Any, str | None]:
        return (None, _answer(item)) if isinstance(item, Drop | Fail) else (self._fields(item), None)

    def _fields(self, item: Any) -> tuple[Any, ...]:
        if not isinstance(item, Mapping):
            raise TypeError(f"the function returned {type(item).__name__}, not a dict")
        unknown = set(item) - set(self.names)
        if unknown:
            raise ValueError(f"the function returned fields that are not in the schema: {sorted(unknown)}")
        fields = tuple(item.get(name) for name in self.names)
        self.verify(fields)
        return fields


def _answer(error: Exception) -> str:
    """What an exception, or what stands for one in the result, says of its event."""
    if isinstance(error, Drop):
        return said(Answer.DROPPED, str(error))
    if isinstance(error, Fail):
        return said(Answer.WAITS if error.transient else Answer.FAILED, str(error))
    return said(Answer.FAILED, f"{type(error).__name__}: {error}")
