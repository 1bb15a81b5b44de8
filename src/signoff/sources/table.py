"""`table`: a table as it is at one moment, for a job: SQLite, PostgreSQL, or a directory of Parquet files.

It has no intake and no log: a job reads it on the executors, all of it from one snapshot
(see `signoff.jobs.compute`).
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from signoff.pipeline.model import NAME_PATTERN, SourceConfig
from signoff.pipeline.secrets import SecretUrl

Store = Literal["sqlite", "postgres", "parquet"]


class TableConfig(SourceConfig):
    """A table that a job reads."""

    summary: ClassVar[str] = "A table of SQLite or PostgreSQL, or a directory of Parquet files. Only in jobs."
    example: ClassVar[str] = (
        "path: ./results.db\ntable: windows\nwhere: windowStart >= :from\ncomplete_to: max(windowEnd)"
    )
    can_acknowledge: ClassVar[bool] = False
    bounded: ClassVar[bool] = True

    type: Literal["table"] = "table"
    path: str | None = None
    """A SQLite file (with `table`), or a directory of Parquet files (without), relative to the job's file.
    Files and directories whose names begin with `.` or `_` are left out; directories `day=2021-05-01` are
    columns."""
    url: SecretUrl | None = None
    """`postgresql://user:password@host/database`, with `table`; the password is never shown."""
    table: str | None = Field(default=None, min_length=1)
    """Table or view of the database, `name` or, in PostgreSQL, `schema.name`."""
    where: str | None = Field(default=None, min_length=1)
    """Which rows are read: a condition in the SQL of the database (of Parquet: Spark SQL), which is evaluated
    there. `:name` is the value of a parameter."""
    columns: tuple[str, ...] = ()
    """The columns that are read; all, if none are named."""
    schema_: str | None = Field(default=None, alias="schema", min_length=1)
    """Columns and types, as in Spark SQL; other columns are not read. Without it the types are those of the
    table; SQLite knows no times, so that these are STRING."""
    complete_to: str | None = Field(default=None, min_length=1)
    """Up to where the table is complete: an aggregate over all of it, such as `max(windowEnd)`, computed in
    the same snapshot. It is recorded with the run and told to its sinks: of several tables the least number
    or time, and nothing if one of them is empty. It is exclusive: what is exactly at it may be missing."""
    needed_to: str | None = Field(default=None, pattern=NAME_PATTERN)
    """A parameter (timestamp): a run whose value is later than `complete_to` computes nothing and ends as
    incomplete, with exit code 4. An event that has asked for it waits, and it is asked for again. A run in
    which the parameter is null needs nothing of the table."""
    partitions: int | None = Field(default=None, ge=1, le=10_000)
    """In how many parts executors read it; by default two for each core."""

    @property
    def store(self) -> Store:
        if self.url is not None:
            return "postgres"
        return "sqlite" if self.table else "parquet"

    @model_validator(mode="after")
    def _is_somewhere(self) -> Self:
        if (self.path is None) == (self.url is None):
            raise ValueError("a table needs either a `path` or a `url`")
        if self.url is not None and not self.table:
            raise ValueError("a table of PostgreSQL needs the field `table`")
        if self.columns and self.schema_:
            raise ValueError("`schema` names the columns that are read; leave `columns` out")
        if self.needed_to and not self.complete_to:
            raise ValueError("`needed_to` is compared with `complete_to`; give that as well")
        return self

    def local_directories(self, base: Path) -> tuple[Path, ...]:
        return (base / self.path,) if self.path and self.store == "parquet" else ()

    def belongs_to_project(self, base: Path) -> bool:
        return self.path is not None and (base / self.path).resolve().is_relative_to(base.resolve())
