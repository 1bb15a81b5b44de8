"""Bases for steps: columns in, columns out, or one row after the other. Neither shows lineage to its author.

Invariants: every row keeps its origin and its id, whatever is computed; a row for which an expression or
`row` raises is that event's error alone, and `on_error` decides; the same rows give the same rows again,
because a batch is computed anew after a crash. So a step must not look at the clock, at random numbers or at
other rows.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pyspark.errors import PySparkException
from pyspark.sql import Column
from pyspark.sql.types import DataType, StructType

from signoff.pipeline.model import Retry
from signoff.plugin.configs import files_of_package
from signoff.sinks.refusal import brief
from signoff.transforms.contract import FieldError, Step, Transform
from signoff.transforms.datetime_patterns import BadPattern
from signoff.transforms.frame import View
from signoff.transforms.functions.row_calls import compile_rows
from signoff.transforms.parsing.parse_json import parse_schema

Made = TypeVar("Made")


class ColumnTransform(Transform):
    """The base of a step that computes columns with Spark's own functions: as fast as any built-in step.

    A subclass sets `type` and `summary`, adds fields, and says in `columns` what it computes. Functions in
    Python (`udf`) belong into a RowTransform: Spark would call them for rows that a filter has removed, too.
    """

    @abstractmethod
    def columns(self, given: Mapping[str, DataType]) -> Mapping[str, Column | None]:
        """The columns to add or to replace, by name; None removes one. All others are handed on as they are.

        `given`: the columns of the input, with their Spark types. A `Column` names them (`F.col("name")`, or
        `` F.col("`a.name`") `` where there is a dot in it), sees one row, and no results of this same step.

        Called on the driver, each time the plan is made: when the pipeline is checked, once per start of the
        engine, and again for retries and replays. The same config must give the same columns each time; no
        data is there yet. Raises FieldError about a field of the config.
        """

    def keep(self, given: Mapping[str, DataType]) -> Column | None:
        """Which rows go on: a condition over the input's columns. The others, also those for which it is
        null, are dropped, counted under this step, and acknowledged. None: all go on. Called as `columns`
        is."""
        return None

    def code_files(self, base: Path) -> tuple[Path, ...]:
        return files_of_package(type(self))

    def compile(self, step: Step, view: View) -> Mapping[str | None, View]:
        frame, given = view.frame, view.frame.schema_of(view)
        condition = _asked(self, "keep", lambda: self.keep(given))
        if condition is not None:
            _must_be(self, "keep", condition, Column)
            whole, made = frame.attempt(step.name, view, {"keep": condition}, self.on_error)
            frame.note_ends(step.name, whole, [made["keep"]])
            view = View(frame, made["keep"], view.columns)
        computed = _asked(self, "columns", lambda: self.columns(given))
        _must_be(self, "columns", computed, Mapping)
        values: dict[str, Column] = {}
        for name, value in computed.items():
            if value is not None:
                _must_be(self, f'columns: "{name}"', value, Column)
                values[name] = value
        kept = {
            name: physical for name, physical in view.columns.items() if computed.get(name, 0) is not None
        }
        whole, made = frame.attempt(step.name, view, values, self.on_error)
        return {None: View(frame, whole.alive, {**kept, **made})}


class RowTransform(Transform):
    """The base of a step in Python: called with each row as a dict, returns what becomes of it.

    A subclass sets `type` and `summary`, adds fields, and says in `columns` what `row` returns.
    """

    drops: ClassVar[str] = "the step returned nothing"
    retry: Retry = Retry()
    """How often, and how patiently, it is called again for an event it fails for now (`fail(…,
    transient=True)`)."""

    @property
    def calls_each_row(self) -> bool:
        return True

    @abstractmethod
    def columns(self, given: Mapping[str, DataType]) -> str | StructType:
        """The columns that `row` returns, and nothing else: `"name STRING, n BIGINT"`.

        `given`: the columns of the input, with their Spark types. Called on the driver, each time the plan is
        made; the same config must give the same columns each time. Raises FieldError about a field of the
        config.
        """

    @abstractmethod
    def row(self, row: dict[str, Any]) -> Mapping[str, Any] | list[Any] | None:
        """What becomes of a row: a dict, or several, or None, with which it is dropped and acknowledged.

        A list makes one row for each element, with ids of their own; it must be the same list in the same
        order when the row comes again. An exception is the error of this one event; `drop(reason)` and
        `fail(reason, transient=…)`, returned or raised, say more. A column that is not named is null, and a
        value that does not fit its column an error.

        Called on executors, for each row that comes to the step, and again for the same one after a crash, a
        retry or a lost task. The config is sent there by pickle; what is costly to make (a client, a table)
        belongs into a cached function of the module.
        """

    def code_files(self, base: Path) -> tuple[Path, ...]:
        return files_of_package(type(self))

    def needed_files(self, base: Path) -> tuple[Path, ...]:
        return files_of_package(type(self))

    def compile(self, step: Step, view: View) -> Mapping[str | None, View]:
        given = view.frame.schema_of(view)
        columns = _asked(self, "columns", lambda: self.columns(given))
        schema = parse_schema(columns) if isinstance(columns, str) else columns
        _must_be(self, "columns", schema, StructType)
        return {None: compile_rows(step, view, self.row, schema, self.on_error)}


def _asked(config: Transform, method: str, ask: Callable[[], Made]) -> Made:
    """What a method returns. Its faults are said to be the package's, with the line they are in."""
    try:
        return ask()
    except (FieldError, BadPattern, PySparkException):
        raise
    except Exception as error:
        raise _broken(
            config, f"{method} raised {type(error).__name__}: {brief(error)}{_place(error)}"
        ) from error


def _must_be(config: Transform, what: str, found: object, kind: type) -> None:
    if not isinstance(found, kind):
        raise _broken(config, f"{what} is {type(found).__name__}, not {kind.__name__}")


def _broken(config: Transform, why: str) -> FieldError:
    module = type(config).__module__
    message = f'the type "{config.type}" of package {module.partition(".")[0]} cannot be used: {why}'
    return FieldError("type", "broken-plugin", message, "that is a fault of the package, not of the pipeline")


def _place(error: Exception) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f" ({Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno})" if trace else ""
