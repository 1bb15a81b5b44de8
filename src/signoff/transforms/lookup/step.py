"""`lookup`: columns of a reference table, by key. Exactly one row comes out for each that comes in.

The table (CSV, Parquet, SQLite or PostgreSQL) is read by the driver and sent to all executors; rows are
joined with it where they are. It is read again while the pipeline runs (`refresh`), and replaced as a whole
between two batches; see `tables`. A row that is computed again, after a crash or for a sink that is
asked again, may meet a newer table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

import pyarrow as pa
from pydantic import BeforeValidator, Field, model_validator
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, IntegralType, StringType

from signoff.pipeline.durations import Duration
from signoff.pipeline.model import Config
from signoff.pipeline.secrets import SecretUrl
from signoff.postgres_names import name_parts, quoted, quoted_name
from signoff.transforms.contract import FieldError, Step, Transform
from signoff.transforms.frame import View
from signoff.transforms.lookup.tables import (
    TABLES,
    Loaded,
    TableError,
    checked,
    read_csv,
    read_parquet,
    read_postgres,
    read_sqlite,
)
from signoff.transforms.parsing.parse_json import parse_schema
from signoff.transforms.row_results import RowResult, result_text

_MOST_ROWS = 1_000_000


def _null_is_a_word(value: object) -> object:
    return "null" if value is None else value


class TableConfig(Config):
    """Where the reference table is."""

    path: str | None = None
    """A file: CSV with a header (`.csv`), Parquet (`.parquet`), or a SQLite database (with `query` or
    `table`); relative to the pipeline file."""
    url: SecretUrl | None = None
    """`postgresql://user:password@host/database`, with `query` or `table`; the password is never shown."""
    table: str | None = None
    """Table of the database; in PostgreSQL as in SQL: `name`, `schema.name`, or with double quotes."""
    query: str | None = None
    """SELECT that gives the table."""
    delimiter: str = Field(default=",", min_length=1, max_length=1)
    """csv: what separates the fields."""
    schema_: str | None = Field(default=None, alias="schema")
    """Columns and types, as in Spark SQL. Of CSV all columns are STRING without it."""

    @model_validator(mode="after")
    def _is_one_place(self) -> Self:
        if (self.path is None) == (self.url is None):
            raise ValueError('name one place: "path" for a file, "url" for PostgreSQL')
        if self.is_file and (self.table or self.query):
            raise ValueError('"table" and "query" are for databases')
        if not self.is_file and bool(self.table) == bool(self.query):
            raise ValueError('a database needs a "table" or a "query"')
        if self.url is not None and self.table:
            name_parts(self.table)
        return self

    @property
    def is_file(self) -> bool:
        return self.path is not None and Path(self.path).suffix.lower() in (".csv", ".parquet")

    def read(self, base: Path, most_rows: int = _MOST_ROWS) -> pa.Table:
        """All of it, or of a database's so much that it is seen to be too much. Raises TableError."""
        table = self.table or ""
        name = quoted_name(table) if self.url is not None and table else quoted(table)
        query = self.query or f"SELECT * FROM {name}"
        if self.url is not None:
            return read_postgres(self.url.get(), query, most_rows)
        path = (base / (self.path or "")).resolve()
        if self.is_file:
            return read_csv(path, self.delimiter) if path.suffix.lower() == ".csv" else read_parquet(path)
        return read_sqlite(path, query, most_rows)


class LookupConfig(Transform):
    summary: ClassVar[str] = "Add columns of a reference table (CSV, Parquet, SQLite, PostgreSQL) by key."
    example: ClassVar[str] = """\
from: {path: ./stations.csv, schema: "stationId BIGINT, name STRING, region STRING"}
keys: [stationId]
columns: [name, region]
on_missing: "null"
refresh: 5m
"""
    type: Literal["lookup"] = "lookup"
    table: TableConfig = Field(alias="from")
    """The reference table: `path`, or `url`, and what else it needs."""
    keys: Annotated[
        dict[str, str],
        BeforeValidator(lambda given: {each: each for each in given} if isinstance(given, list) else given),
    ] = Field(min_length=1)
    """Columns that must be equal: names that both have, or `column of the event: column of the table`. A null
    is equal to nothing. In the table each combination may be there once."""
    columns: Annotated[
        dict[str, str],
        BeforeValidator(lambda given: {each: each for each in given} if isinstance(given, list) else given),
    ] = Field(min_length=1)
    """What is added: names, or `new column: column of the table`. One that the event has is
    replaced."""
    on_missing: Annotated[Literal["null", "drop", "error"], BeforeValidator(_null_is_a_word)] = "error"
    """What becomes of an event whose key is not in the table: `null`, it goes on with nulls; `drop`; or
    `error`, and `on_error` applies."""
    refresh: Annotated[Duration, Field(ge=1)] | None = None
    """How often the table is read again: `5m`. If that fails the table stays as it was, and the run warns.
    Null: once, when the run starts."""
    max_rows: int = Field(default=_MOST_ROWS, ge=1)
    """Most rows of the table: it is held in memory."""

    @property
    def calls_out(self) -> bool:
        return self.table.url is not None

    def version(self, name: str, base: Path) -> object:
        try:
            return self._loaded(name, base).version
        except TableError:
            return None  # it was never read, which the plan says that is made now

    def compile(self, step: Step, view: View) -> Mapping[str | None, View]:
        frame, kinds = view.frame, view.frame.schema_of(view)
        for name in self.keys:
            if name not in kinds:
                hint = f"there is: {', '.join(kinds)}"
                raise FieldError("keys", "unresolved-column", f'there is no column "{name}"', hint)
        try:
            loaded = self._loaded(step.name, step.base)
            table = frame.df.sparkSession.createDataFrame(loaded.table)
        except TableError as error:
            raise FieldError(
                "from", "bad-table", str(error), "see docs/pipeline.md#reference-tables"
            ) from None
        schema = table.schema
        for name, theirs in self.keys.items():
            self._check_kind(name, kinds[name], schema[theirs].dataType)
        prefix = frame.fresh("looked_up")
        renamed = table.select(
            F.lit(True).alias(prefix),
            *(F.col(f"`{each}`").alias(f"{prefix}_{each}") for each in table.columns),
        )
        keys = frame.compute(view, {name: F.col(f"`{name}`") for name in self.keys})
        condition = F.lit(True)
        for name, theirs in self.keys.items():
            condition = condition & (F.col(keys[name]) == F.col(f"{prefix}_{theirs}"))
        before = frame.df.columns
        joined = frame.df.join(F.broadcast(renamed), condition, "left")
        added = {name: frame.fresh(name) for name in self.columns}
        found = frame.fresh("found")
        frame.df = joined.select(
            *before,
            (F.col(view.alive) & F.coalesce(F.col(prefix), F.lit(False))).alias(found),
            *(F.col(f"{prefix}_{theirs}").alias(added[name]) for name, theirs in self.columns.items()),
        )
        columns = {**view.columns, **added}
        if self.on_missing == "null":
            return {None: View(frame, view.alive, columns)}
        self._note_missing(step, view, found, keys)
        return {None: View(frame, found, columns)}

    def _note_missing(self, step: Step, view: View, found: str, keys: Mapping[str, str]) -> None:
        """An answer, since it may be another one when the table has been read again."""
        texts = [
            F.concat(F.lit(f"{name} "), F.coalesce(F.col(column).cast("string"), F.lit("null")))
            for name, column in keys.items()
        ]
        answer = RowResult.DROPPED if self.on_missing == "drop" else RowResult.FAILED
        text = F.concat(F.lit(result_text(answer, "not in the table: ")), F.concat_ws(", ", *texts))
        error = view.frame.compute(view, {"error": F.when(~F.col(found), text)})["error"]
        view.frame.add_error(step.name, error, self.on_error, answers=True)

    def _types(self) -> pa.Schema | None:
        return (
            None
            if self.table.schema_ is None
            else to_arrow_schema(parse_schema(self.table.schema_), timezone="UTC")
        )

    def _loaded(self, name: str, base: Path) -> Loaded:
        key = json.dumps([name, str(base), repr(self.table), self.keys, self.columns, self.max_rows])

        def read() -> pa.Table:
            keys, columns = list(self.keys.values()), list(self.columns.values())
            return checked(self.table.read(base, self.max_rows), keys, columns, self.max_rows, self._types())

        return TABLES.get(name, key, read, self.refresh)

    @staticmethod
    def _check_kind(name: str, ours: DataType, theirs: DataType) -> None:
        whole = isinstance(ours, IntegralType) and isinstance(theirs, IntegralType)
        texts = isinstance(ours, StringType) and isinstance(theirs, StringType)
        if ours != theirs and not whole and not texts:
            message = f'"{name}" is {ours.simpleString()}, and {theirs.simpleString()} in the table'
            raise FieldError(
                "keys", "type-error", message, "give the table a schema, or cast with a select before"
            )
