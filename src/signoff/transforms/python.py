"""`python`: a user's function as a step.

`frame`: DataFrame in, DataFrame out, plain PySpark. The function sees the input's columns and
`_origin`, the lineage, and must keep that column: a function that loses it is refused when the
pipeline is checked. Such a step has a plan of its own; what else hangs on the same input is read
twice.

`rows`: called with each event as a dict; returns a dict, a list of dicts, or None to drop it. An
exception is the error of that one event. `signoff.drop` and `signoff.fail` say more (see `answers`). Runs on
executors, and again after a crash or a retry: then it must split an event into the same pieces as before.

`groups`: called with the events of a batch that have the same keys, and makes one or more of them (see
`groups`).
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType, Row, StringType, StructField, StructType

from signoff.pipeline.model import Names, Retry
from signoff.transforms.answers import Answer, Drop, Fail, answer_of, said
from signoff.transforms.arrow_calls import Call, arrow_udf
from signoff.transforms.black_box import EVENT, Recorded
from signoff.transforms.contract import FieldError, Step, Transform
from signoff.transforms.frame import ORIGIN, SEQUENCE, View, begin_again, lineage_of
from signoff.transforms.groups import Event, GroupCall, compile_groups
from signoff.transforms.merge import check_keys
from signoff.transforms.parse_json import parse_schema
from signoff.transforms.values import Fields

Made = dict[str, Any]
"""A row that goes on, or what the function said of it."""


class PythonConfig(Transform):
    summary: ClassVar[str] = "Run a function of yours: on the DataFrame, on each event, or on groups of them."
    drops: ClassVar[str] = "the function returned nothing"
    type: Literal["python"] = "python"
    function: str | Callable[..., Any]
    """`module:function`, found next to the pipeline file or on the Python path."""
    mode: Literal["frame", "rows", "groups"] = "frame"
    """`frame`: DataFrame to DataFrame. `rows`: dict to dict, list of dicts or None. `groups`: the same from a
    list of dicts, the events of a batch that have the same `keys`."""
    keys: Names = ()
    """With `mode: groups`: columns in which the events of a group have the same values."""
    schema_: str | None = Field(default=None, alias="schema")
    """Columns and types the function returns; needed with `mode: rows` and `mode: groups`."""
    retry: Retry = Retry()
    """How often, and how patiently, the function is called again for an event it fails for now
    (`signoff.fail(…, transient=True)`)."""

    @property
    def streams(self) -> bool:
        """A function on DataFrames may do what only a stream can, such as remember."""
        return self.mode == "frame"

    @property
    def unites(self) -> bool:
        return self.mode == "groups"

    def needed_files(self, base: Path) -> tuple[Path, ...]:
        """The module of the function, where that is beside the pipeline: executors are told to look there."""
        named = isinstance(self.function, str)
        module = str(self.function).partition(":")[0] if named else str(self.function.__module__)
        way = base.resolve().joinpath(*module.split("."))
        return tuple(file for file in (way.with_suffix(".py"), way / "__init__.py") if file.is_file())

    def code_files(self, base: Path) -> tuple[Path, ...]:
        """All beside the pipeline, and those of the package that the function is in."""
        named = isinstance(self.function, str)
        module = str(self.function).partition(":")[0] if named else str(self.function.__module__)
        top = module.partition(".")[0]
        found, folders = set(base.resolve().glob("*.py")), [base.resolve() / top]
        with suppress(ImportError, ValueError):
            spec = importlib.util.find_spec(top)
            if spec is not None and spec.has_location and spec.origin:
                found.add(Path(spec.origin).resolve())
                folders += [Path(each).resolve() for each in spec.submodule_search_locations or ()]
        return tuple(found.union(*(folder.rglob("*.py") for folder in folders)))

    def compile(self, step: Step, view: View) -> Mapping[str | None, View]:
        function = self._function(step.base)
        if self.mode == "rows":
            return {None: self._rows(step, view, function)}
        if self.mode == "groups":
            return {None: self._groups(step, view, function)}
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
        lineage = lineage_of(given)
        result = function(given.select(*view.columns, F.struct(*lineage).alias(ORIGIN)))
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
        flat = result.select(*(F.col(f"{ORIGIN}.{name}") for name in lineage), *columns)
        return begin_again(flat, columns, view.frame)

    def _schema(self) -> StructType:
        if self.schema_ is None:
            raise FieldError(
                "schema", "missing-field", f'mode "{self.mode}" needs "schema"', 'add "name TYPE, …"'
            )
        return parse_schema(self.schema_)

    def _groups(self, step: Step, view: View, function: Callable[[list[Event]], Any]) -> View:
        if not self.keys:
            raise FieldError("keys", "missing-field", 'mode "groups" needs "keys"', "add names of columns")
        check_keys(self.keys, view)
        schema = self._schema()
        call = GroupCall(function, Fields(schema))
        return compile_groups(step, view, self.keys, call, schema, self.on_error)

    def _rows(self, step: Step, view: View, function: Callable[[dict[str, Any]], Any]) -> View:
        frame, schema = view.frame, self._schema()
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
        frame.add_error(step.name, columns["error"], self.on_error, answers=True)
        rows = View(frame, columns["ok"], {})
        values = frame.compute(rows, {name: F.col(value)["value"][name] for name in schema.names})
        return View(frame, columns["ok"], values)


class RowCall:
    """The user's function on one row, on an executor: its exception becomes data."""

    def __init__(self, function: Callable[[dict[str, Any]], Any], fields: Fields) -> None:
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
        return [_made(None, (None, said(Answer.FAILED, reason)))]

    def _one(self, item: Any) -> tuple[Any, str | None]:
        return (None, answer_of(item)) if isinstance(item, Drop | Fail) else (self.fields(item), None)


def _made(child: str | None, result: tuple[Any, str | None]) -> Made:
    value, error = result
    return {"child": child, "value": {"value": value, "error": error}}
