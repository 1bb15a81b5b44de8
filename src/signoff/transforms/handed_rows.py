"""Rows as they were handed on: the JSON of a link's log, back into the columns they had.

Not a type of its own for users: the engine puts it behind the log of a buffer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import ClassVar, Literal

from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructType

from signoff.transforms.contract import FieldError, Step, Transform
from signoff.transforms.frame import View
from signoff.transforms.parsing.flat_json import FlatJson
from signoff.transforms.parsing.parse_json import parse

_NO_WAY_BACK = ("interval", "variant", "time(", "calendar", "void", "geometry", "geography")
"""Types, by how their names begin, that Spark does not read from the JSON it would be kept as."""


class RowsConfig(Transform):
    summary: ClassVar[str] = "Rows of a buffer."
    type: Literal["rows"] = "rows"
    columns: str
    """The rows' schema, as Spark writes it in JSON."""

    @property
    def _schema(self) -> StructType:
        return StructType.fromJson(json.loads(self.columns))

    def flat_json(self) -> FlatJson | None:
        return FlatJson.of(self._schema, None)

    def compile(self, step: Step, view: View) -> Mapping[str | None, View]:
        return {None: parse(step, view, self._schema, self.on_error)}


def check_kept(schema: Mapping[str, DataType]) -> None:
    """Raises FieldError for a column that would not come back from a buffer as it was."""
    for name, kind in schema.items():
        if (wrong := unfit(kind)) is not None:
            message = f'column "{name}" ({wrong.simpleString()}) cannot be kept in a buffer'
            raise FieldError("buffer", "buffer-type", message, "cast it with a select before this sink")


def unfit(kind: DataType) -> DataType | None:
    if isinstance(kind, StructType):
        return next((found for field in kind if (found := unfit(field.dataType)) is not None), None)
    if isinstance(kind, ArrayType):
        return unfit(kind.elementType)
    if isinstance(kind, MapType):
        return kind if not isinstance(kind.keyType, StringType) else unfit(kind.valueType)
    return kind if kind.simpleString().startswith(_NO_WAY_BACK) else None
