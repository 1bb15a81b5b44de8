"""Directories of Parquet files, read by Spark itself.

The snapshot is hard links to the files that are there: whoever replaces or removes one meanwhile takes only
his own name for it away. Where links cannot be made (another disk), the list of files is the snapshot. A file
that is written to in its place, or without links replaced or removed, fails the run: who reads it might see
a part of the old and a part of the new.

Invariant: every row of every file is read once, whatever the files are called and wherever they are, or the
run fails.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from signoff.jobs.parameter_values import arguments
from signoff.jobs.spark_failures import SPARK_FAILURES, reason_of
from signoff.jobs.tables import Table, TableUnreadable, Wanted
from signoff.pipeline.job_settings import Parameter, Value

_SUFFIX = ".parquet"
_PATTERN = re.compile(r"[\\*?\[\]{}]")
"""What Hadoop takes for a pattern, of which a path is one: `a[1].parquet` would be `a1.parquet`."""


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
    if root.exists() and not root.is_dir():
        raise TableUnreadable(f'table "{one.name}": {root} is no directory of Parquet files')
    files = files_of(root)
    if not files and one.schema is None:
        hint = "give the table a schema, if that may be"
        raise TableUnreadable(f'table "{one.name}": there are no Parquet files in {root}; {hint}')
    linked = _linked(root, files, directory / f"{one.name}.snapshot")
    before = [_stamp(one.name, root, linked, file) for file in files]
    for file, (_, size, _) in zip(files, before, strict=True):
        if size == 0:  # Spark would take it for one without rows
            text = f"{root / file} is empty, and no Parquet file: it is being written, or was not written"
            raise TableUnreadable(f'table "{one.name}": {text}; run again, or remove it')
    try:
        table = _chosen(spark, one, linked or root, files, arguments(spark, values, declared))
    except SPARK_FAILURES as error:
        raise TableUnreadable(f'table "{one.name}" in {root}: {reason_of(error)}') from None
    yield table
    for file, stamp in zip(files, before, strict=True):
        if _stamp(one.name, root, linked, file) != stamp:
            raise TableUnreadable(
                f'table "{one.name}": {root / file} was changed while it was read; run again'
            )


def _chosen(
    spark: SparkSession, one: Wanted, root: Path, files: list[Path], bound: Mapping[str, Any]
) -> Table:
    config = one.config
    if files or one.schema is None:
        df = read(spark, one, root, files)
    else:
        df = spark.createDataFrame([], one.schema)
    view = f"signoff_table_{one.name}"
    df.createOrReplaceTempView(view)
    complete_to = None
    if config.complete_to:
        found = spark.sql(f"SELECT CAST({config.complete_to} AS STRING) FROM {view}", bound).first()
        complete_to = found[0] if found else None
    if config.where:
        df = spark.sql(f"SELECT * FROM {view} WHERE {config.where}", bound)
    return Table(df.select(*(f"`{name}`" for name in config.columns)) if config.columns else df, complete_to)


def read(spark: SparkSession, one: Wanted, root: Path, files: list[Path]) -> DataFrame:
    _must_agree(one.name, files)
    reader = spark.read.option("basePath", str(root))
    reader = reader.schema(one.schema) if one.schema is not None else reader.option("mergeSchema", "true")
    try:
        return reader.parquet(*(_PATTERN.sub(r"\\\g<0>", str(root / file)) for file in files))
    except SPARK_FAILURES as error:
        raise TableUnreadable(f'table "{one.name}" in {root}: {reason_of(error)}') from None


def _must_agree(table: str, files: list[Path]) -> None:
    """Spark leaves out what is not in a directory `day=…` where other files are."""
    columns = {
        tuple(each.partition("=")[0] for each in file.parts[:-1] if "=" in each): file for file in files
    }
    if len(columns) > 1:
        some, other = list(columns.values())[:2]
        raise TableUnreadable(
            f'table "{table}": directories are columns, and {some} is not in those that {other} is in; '
            "put all files into directories of the same columns"
        )


def files_of(root: Path) -> list[Path]:
    """Relative to the directory, in order; without what is hidden: files that are being written."""
    found = []
    for where, directories, names in os.walk(root, followlinks=True):
        directories[:] = sorted(
            name for name in directories
            if not name.startswith((".", "_")) and not _is_above(Path(where) / name)
        )  # fmt: skip
        found += [
            (Path(where) / name).relative_to(root)
            for name in sorted(names)
            if name.endswith(_SUFFIX) and not name.startswith((".", "_"))
        ]
    return found


def _is_above(directory: Path) -> bool:
    """Whether it is a link to a directory that it is in."""
    return directory.is_symlink() and directory.parent.resolve().is_relative_to(directory.resolve())


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
            os.link((root / file).resolve(), target / file)  # a link to a link would lead nowhere
    except FileNotFoundError as error:
        raise TableUnreadable(f"{root}: {error.filename} disappeared; run again") from None
    except OSError:  # another disk, or one without links
        return None
    return target
