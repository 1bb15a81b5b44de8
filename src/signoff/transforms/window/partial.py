"""Events of one task to one row for each window and keys, before they are handed on.

Only aggregates that can be put together from partial ones are computed here; what they are is decided when
the pipeline is compiled (`signoff.transforms.window.step`). Rows of several tasks and batches are put
together by Spark, in its state store.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

START, ORIGIN = "__start", "__origin"
TIME, CLOSED = "__time", "__mark"
"""Columns of the rows that come in: their time, and up to where windows were closed when the batch began."""
Function = Literal["rows", "count", "sum", "avg", "min", "max"]

_AGAIN = {"count_all": "sum", "count": "sum", "sum": "sum", "min": "min", "max": "max"}
_UNITE_AT = 100_000


@dataclass(frozen=True)
class Measure:
    """One aggregate: a function, and the column it is of ("rows" is of none)."""

    function: Function
    column: str
    result: str
    """Name of the partial value."""
    number: str = ""
    """For an average: name of the partial count; `result` is the sum then."""

    def parts(self) -> list[tuple[str, str, str]]:
        """Column, pyarrow's function, and the name of what comes out."""
        if self.function == "rows":
            return [("", "count_all", self.result)]
        if self.function == "avg":
            return [(self.column, "sum", self.result), (self.column, "count", self.number)]
        return [(self.column, self.function, self.result)]

    def of_rows(self, rows: pa.RecordBatch) -> dict[str, pa.Array]:
        """The partial values of each row for itself."""
        if self.function == "rows":
            return {self.result: pa.repeat(pa.scalar(1, pa.int64()), rows.num_rows)}
        value = rows.column(self.column)
        number = value.is_valid().cast(pa.int64())
        if self.function == "count":
            return {self.result: number}
        return {self.result: value, **({self.number: number} if self.number else {})}


@dataclass
class Partials:
    """The partial rows of one task, growing."""

    keys: tuple[str, ...]
    measures: tuple[Measure, ...]
    with_origins: bool
    """Keep all events a row was made from, and not only the first."""
    _tables: list[pa.Table] = field(default_factory=list)
    _rows: int = 0
    _floats: dict[str, pa.DataType] = field(default_factory=dict)
    """Partial values that are kept as integers in the order of their floats: see `_in_order`."""

    def add(self, rows: pa.Table) -> None:
        """Rows with `__start`, `__origin`, the keys and the measures' columns."""
        rows = self._comparable(rows)
        if self.with_origins:
            self._tables.append(rows)
            return
        self._keep(self._first(rows))
        if self._rows > _UNITE_AT:
            united = self._again(self._tables)
            self._tables, self._rows = [], 0
            self._keep(united)

    def finish(self) -> pa.Table | None:
        """One row for each window and keys: `__start`, `__origin`, keys and partial values."""
        if not self._tables:
            return None
        if self.with_origins:
            made = self._first(pa.concat_tables(self._tables).combine_chunks())
        else:
            made = self._again(self._tables)
        for name, kind in self._floats.items():
            place = made.schema.get_field_index(name)
            made = made.set_column(place, name, _from_order(made.column(name)).cast(kind))
        return made

    def _comparable(self, rows: pa.Table) -> pa.Table:
        for measure in self.measures:
            if measure.function in ("min", "max") and pt.is_floating(rows.schema.field(measure.column).type):
                place = rows.schema.get_field_index(measure.column)
                values = rows.column(place)
                self._floats[measure.result] = values.type
                rows = rows.set_column(place, measure.column, _in_order(values))
        return rows

    def _keep(self, table: pa.Table) -> None:
        self._tables.append(table)
        self._rows += table.num_rows

    @property
    def _parts(self) -> list[tuple[str, str, str]]:
        origins = (ORIGIN, "list" if self.with_origins else "min", ORIGIN)
        return [origins, *(part for measure in self.measures for part in measure.parts())]

    def _first(self, rows: pa.Table) -> pa.Table:
        return self._grouped(rows, [(column, function) for column, function, _ in self._parts])

    def _again(self, tables: Sequence[pa.Table]) -> pa.Table:
        if len(tables) == 1:
            return tables[0]
        together = pa.concat_tables(tables).combine_chunks()
        return self._grouped(together, [(name, _AGAIN[function]) for _, function, name in self._parts])

    def _grouped(self, rows: pa.Table, aggregates: list[tuple[str, str]]) -> pa.Table:
        unique = list(dict.fromkeys(aggregates))  # `count(*)` may be there twice
        wanted: list[tuple[str | list[str], str]] = [
            ((column or []), function) for column, function in unique
        ]
        made = rows.group_by([START, *self.keys], use_threads=False).aggregate(wanted)
        found = [f"{column}_{function}" if column else function for column, function in aggregates]
        names = [START, *self.keys, *(name for _, _, name in self._parts)]
        return pa.Table.from_arrays([made.column(name) for name in (START, *self.keys, *found)], names)


def _in_order(values: pa.ChunkedArray) -> pa.Array:
    """Floats as integers in the order that Spark has: NaN, which Arrow leaves out, is the greatest."""
    whole = values.combine_chunks().cast(pa.float64())
    numbers = whole.fill_null(0).to_numpy(zero_copy_only=False)
    bits = np.where(np.isnan(numbers), np.nan, numbers).view(np.int64)
    return pa.array(bits ^ ((bits >> 63) & np.int64(2**63 - 1)), mask=~np.asarray(whole.is_valid()))


def _from_order(values: pa.ChunkedArray) -> pa.Array:
    whole = values.combine_chunks()
    numbers = whole.fill_null(0).to_numpy(zero_copy_only=False)
    floats = (numbers ^ ((numbers >> 63) & np.int64(2**63 - 1))).view(np.float64)
    return pa.array(floats, mask=~np.asarray(whole.is_valid()))
