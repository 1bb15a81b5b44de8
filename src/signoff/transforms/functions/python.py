"""`python`: a user's function as a step.

`frame`: DataFrame in, DataFrame out, plain PySpark, row by row (see `frames`). The function sees the input's
columns and `_origin`, the lineage, and must keep that column: a function that loses it is refused when the
pipeline is checked. Such a step has a plan of its own, for which what is upstream is computed once
more, unless it calls out (see `engine.plan.kept_rows`).

`rows`: called with each event as a dict; returns a dict, a list of dicts, or None to drop it. An
exception is the error of that one event. `signoff.drop` and `signoff.fail` say more (see `row_results`). Runs
on executors, and again after a crash or a retry: then it must split an event into the same pieces as before.

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
from pyspark.sql.types import StructType

from signoff.pipeline.model import Names, Retry
from signoff.transforms.contract import FieldError, Step, Transform
from signoff.transforms.frame import View
from signoff.transforms.functions.frames import compile_frame
from signoff.transforms.functions.groups import Event, GroupCall, compile_groups
from signoff.transforms.functions.row_calls import compile_rows
from signoff.transforms.functions.values import Fields
from signoff.transforms.merge import check_keys
from signoff.transforms.parsing.parse_json import parse_schema


class PythonConfig(Transform):
    summary: ClassVar[str] = "Run a function of yours: on the DataFrame, on each event, or on groups of them."
    drops: ClassVar[str] = "the function returned nothing"
    type: Literal["python"] = "python"
    function: str | Callable[..., Any]
    """`module:function`, found next to the pipeline file or on the Python path."""
    mode: Literal["frame", "rows", "groups"] = "frame"
    """`frame`: DataFrame to DataFrame, row by row. `rows`: dict to dict, list of dicts or None. `groups`: the
    same from a list of dicts, the events of a batch that have the same `keys`."""
    keys: Names = ()
    """With `mode: groups`: columns in which the events of a group have the same values."""
    schema_: str | None = Field(default=None, alias="schema")
    """Columns and types the function returns; needed with `mode: rows` and `mode: groups`."""
    retry: Retry = Retry()
    """How often, and how patiently, the function is called again for an event it fails for now
    (`signoff.fail(…, transient=True)`)."""

    @property
    def unites(self) -> bool:
        return self.mode == "groups"

    @property
    def begins_plan(self) -> bool:
        return self.mode != "rows"

    @property
    def may_answer_otherwise(self) -> bool:
        return self.mode != "frame"  # of which `compile_frame` sees whether it calls code in Python

    @property
    def calls_each_row(self) -> bool:
        return self.mode == "rows"

    @property
    def calls_out(self) -> bool:
        return True

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
            return {None: compile_rows(step, view, function, self._schema(), self.on_error)}
        if self.mode == "groups":
            return {None: self._groups(step, view, function)}
        return {None: compile_frame(step.name, view, function)}

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
