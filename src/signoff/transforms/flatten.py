"""`flatten`: the fields of structs, and named keys of maps, become columns of their own.

Which columns there are is known before an event is: the fields of a struct are in its type, the keys of a map
are named. A struct that is null gives nulls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal

from pydantic import Field
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import DataType, MapType, StringType, StructType

from signoff.pipeline.model import Names
from signoff.transforms.contract import FieldError, Step, Transform
from signoff.transforms.frame import View


class FlattenConfig(Transform):
    summary: ClassVar[str] = "Turn the fields of structs, and named keys of maps, into columns."
    example: ClassVar[str] = """\
columns: [customer, headers]
keys: {headers: [file]}
"""
    type: Literal["flatten"] = "flatten"
    columns: Names = ()
    """Columns to flatten; none named: all that are structs, and the maps in `keys`."""
    separator: str = "_"
    """What stands between the names: `customer_address_city`."""
    depth: int | None = Field(default=None, ge=1)
    """How many levels are flattened; null: all. Arrays stay as they are."""
    keys: dict[str, tuple[str, ...]] = Field(default={})
    """Of maps with texts as keys: those that become columns. The map itself does not go on."""

    def compile(self, step: Step, view: View) -> Mapping[str | None, View]:
        kinds = view.frame.schema_of(view)
        for name in (*self.columns, *self.keys):
            if name not in kinds:
                hint = f"there is: {', '.join(kinds)}"
                raise FieldError("columns", "unresolved-column", f'there is no column "{name}"', hint)
        for name, kind in kinds.items():
            self._check(name, kind)
        values: dict[str, Column] = {}
        kept: dict[str, str] = {}
        for name, kind in kinds.items():
            if not self._is_flattened(name, kind):
                _add(kept, values, name)
                kept[name] = view.columns[name]
                continue
            for flat, value in self._flat(name, F.col(f"`{name}`"), kind, 0):
                _add(kept, values, flat)
                values[flat] = value
        made = view.frame.compute(view, values)
        return {None: View(view.frame, view.alive, {**kept, **made})}

    def _is_flattened(self, name: str, kind: DataType) -> bool:
        if self.columns:
            return name in self.columns
        return isinstance(kind, StructType) or name in self.keys

    def _check(self, name: str, kind: DataType) -> None:
        if name in self.keys and not (isinstance(kind, MapType) and isinstance(kind.keyType, StringType)):
            message = f'column "{name}" is {kind.simpleString()}, not a map with texts as keys'
            raise FieldError("keys", "type-error", message, "name a map")
        if name in self.columns and isinstance(kind, MapType) and name not in self.keys:
            message = f'which keys of the map "{name}" become columns is not said'
            raise FieldError("columns", "type-error", message, f"write keys: {{{name}: [KEY, …]}}")
        if name in self.columns and not isinstance(kind, StructType | MapType):
            message = f'column "{name}" is {kind.simpleString()}, neither a struct nor a map'
            raise FieldError("columns", "type-error", message, "leave it out: it stays as it is")

    def _flat(self, name: str, value: Column, kind: DataType, level: int) -> Iterator[tuple[str, Column]]:
        if isinstance(kind, MapType) and name in self.keys:
            for key in self.keys[name]:
                yield f"{name}{self.separator}{key}", F.try_element_at(value, F.lit(key))
        elif isinstance(kind, StructType) and (self.depth is None or level < self.depth):
            for field in kind.fields:
                inner = f"{name}{self.separator}{field.name}"
                yield from self._flat(inner, value[field.name], field.dataType, level + 1)
        else:
            yield name, value


def _add(kept: Mapping[str, str], values: Mapping[str, Column], name: str) -> None:
    if name in kept or name in values:
        message = f'two columns would be called "{name}"'
        raise FieldError(
            "separator", "duplicate-column", message, "use another separator, or rename one before"
        )
