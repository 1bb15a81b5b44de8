"""Events of one task to one row for each window and keys, before they are handed on.

Only aggregates that can be put together from partial ones are computed here; what they are is decided when
the pipeline is compiled (`signoff.transforms.window`). Rows of several tasks and batches are put together by
Spark, in its state store.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa

START, ORIGIN = "__start", "__origin"
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

    def add(self, rows: pa.Table) -> None:
        """Rows with `__start`, `__origin`, the keys and the measures' columns."""
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
            return self._first(pa.concat_tables(self._tables).combine_chunks())
        return self._again(self._tables)

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
        wanted: list[tuple[str | list[str], str]] = [
            ((column or []), function) for column, function in aggregates
        ]
        made = rows.group_by([START, *self.keys], use_threads=False).aggregate(wanted)
        names = [name for _, _, name in self._parts]
        given = made.schema.names
        found = [f"{column}_{function}" if column else function for column, function in aggregates]
        columns = [START, *self.keys, *found]
        assert set(columns) <= set(given)
        return made.select(columns).rename_columns([START, *self.keys, *names])
