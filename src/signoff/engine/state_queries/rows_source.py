"""The log in front of a window's state as a Spark source, whose rows are parsed while the log is read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from signoff.log.spark import LogDataSource, LogOptions, LogStreamReader
from signoff.transforms.parsing.flat_json import FlatJson, early_columns
from signoff.transforms.preparse import Early

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamReader

_STEP = "row"
_PAYLOAD = StructField("payload", StringType())


class RowsSource(LogDataSource):
    """One log, with the option `columns`: the schema of its rows, as Spark writes it in JSON."""

    @classmethod
    def name(cls) -> str:
        return "signoff_rows"

    def schema(self) -> StructType:
        return self._early().schema(StructType([_PAYLOAD]))

    def streamReader(self, schema: StructType) -> RowsReader:  # noqa: N802
        options = {name: value for name, value in self.options.items() if name.lower() != "columns"}
        log = LogDataSource(options).schema()
        return RowsReader(LogOptions.parse(options), to_arrow_schema(log, timezone="UTC"), self._early())

    def _early(self) -> Early:
        flat = FlatJson.of(StructType.fromJson(json.loads(self.options["columns"])), None)
        assert flat is not None  # see `rows_stream`
        return Early({_STEP: flat}, frozenset({_PAYLOAD.name}))


class RowsReader(LogStreamReader):
    """The log as it grows: what is in its rows, and the text of those that are not flat JSON."""

    def __init__(self, options: LogOptions, log: pa.Schema, early: Early) -> None:
        super().__init__(options, log)
        self._early = early

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        names = self._early.schema(StructType([_PAYLOAD])).names
        return (self._early(rows).select(names) for rows in super().read(partition))


def rows_stream(spark: SparkSession, schema: StructType) -> DataStreamReader:
    """A reader of a log of rows, to be given the options of one."""
    if FlatJson.of(schema, None) is None:
        return spark.readStream.format(LogDataSource.name())
    spark.dataSource.register(RowsSource)
    return spark.readStream.format(RowsSource.name()).option("columns", schema.json())


def parsed_rows(stream: DataFrame, schema: StructType) -> DataFrame:
    """What is in the rows of such a log."""
    # Here: the processes that plan the source need none of it.
    from pyspark.sql import functions as F  # noqa: N812

    from signoff.transforms.parsing.parse_json import CORRUPT

    early, *columns = early_columns(_STEP, schema)
    row = F.from_json("payload", schema, {"columnNameOfCorruptRecord": CORRUPT})
    if early not in stream.columns:
        return stream.select(row.alias("row")).select("row.*")
    parsed = stream.withColumn("row", F.when(~F.col(early), row))
    return parsed.select(
        *(
            F.when(F.col(early), F.col(column)).otherwise(F.col("row")[name]).alias(name)
            for name, column in zip(schema.names, columns, strict=True)
        )
    )
