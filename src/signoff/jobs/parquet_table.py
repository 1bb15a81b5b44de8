"""Directories of Parquet files, read by Spark itself.

The snapshot is hard links to the files that are there: whoever replaces or removes one meanwhile takes only
his own name for it away. Where links cannot be made (another disk), the list of files is the snapshot. A file
that is written to in its place, or without links replaced or removed, fails the run: who reads it might see
a part of the old and a part of the new.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from signoff.jobs.parameter_values import arguments
from signoff.jobs.tables import Table, TableUnreadable, Wanted
from signoff.pipeline.job_settings import Parameter, Value

_SUFFIX = ".parquet"


@contextmanager
def snapshot(
    spark: SparkSession,
    base: Path,
    one: Wanted,
    values: Mapping[str, Value],
    declared: Mapping[str, Parameter],
    directory: Path,
) -> Iterator[Table]:
    """The table, for as long as the context lasts. At its end it is known that nobody has changed it."""
    root = base / str(one.config.path)
    files = files_of(root)
    if not files and one.schema is None:
        hint = "give the table a schema, if that may be"
        raise TableUnreadable(f'table "{one.name}": there are no Parquet files in {root}; {hint}')
    linked = _linked(root, files, directory / f"{one.name}.snapshot")
    before = [_stamp(one.name, root, linked, file) for file in files]
    df = (
        spark.createDataFrame([], one.schema)
        if not files and one.schema
        else read(spark, one, linked or root, files)
    )
    view = f"signoff_table_{one.name}"
    df.createOrReplaceTempView(view)
    bound = arguments(spark, values, declared)
    complete_to = None
    if one.config.complete_to:
        found = spark.sql(f"SELECT CAST({one.config.complete_to} AS STRING) FROM {view}", bound).first()
        complete_to = found[0] if found else None
    if one.config.where:
        df = spark.sql(f"SELECT * FROM {view} WHERE {one.config.where}", bound)
    chosen = df.select(*(f"`{name}`" for name in one.config.columns)) if one.config.columns else df
    yield Table(chosen, complete_to)
    for file, stamp in zip(files, before, strict=True):
        if _stamp(one.name, root, linked, file) != stamp:
            raise TableUnreadable(
                f'table "{one.name}": {root / file} was changed while it was read; run again'
            )


def read(spark: SparkSession, one: Wanted, root: Path, files: list[Path]) -> DataFrame:
    reader = spark.read.option("basePath", str(root))
    reader = reader.schema(one.schema) if one.schema is not None else reader.option("mergeSchema", "true")
    try:
        return reader.parquet(*(str(root / file) for file in files))
    except PySparkException as error:
        raise TableUnreadable(f'table "{one.name}" in {root}: {str(error).splitlines()[0]}') from None


def files_of(root: Path) -> list[Path]:
    """Relative to the directory, in order; without what is hidden: files that are being written."""
    found = []
    for where, directories, names in os.walk(root):
        directories[:] = sorted(name for name in directories if not name.startswith((".", "_")))
        found += [
            (Path(where) / name).relative_to(root)
            for name in sorted(names)
            if name.endswith(_SUFFIX) and not name.startswith((".", "_"))
        ]
    return found


def _stamp(table: str, root: Path, linked: Path | None, file: Path) -> tuple[int, int, int]:
    try:
        found = ((linked or root) / file).stat()
    except FileNotFoundError:
        text = f'table "{table}": {root / file} was removed while it was read; run again'
        raise TableUnreadable(text) from None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _linked(root: Path, files: list[Path], target: Path) -> Path | None:
    try:
        for file in files:
            (target / file).parent.mkdir(parents=True, exist_ok=True)
            os.link(root / file, target / file)
    except FileNotFoundError as error:
        raise TableUnreadable(f"{root}: {error.filename} disappeared; run again") from None
    except OSError:  # another disk, or one without links
        return None
    return target
