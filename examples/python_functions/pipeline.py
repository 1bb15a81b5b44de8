"""A pipeline in Python: a plain PySpark function, and one that is called for each event.

signoff run pipeline.py --once     or     python pipeline.py
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from signoff import Pipeline

pipeline = Pipeline("readings")
pipeline.source("incoming", "files", path="./in/*.csv")
pipeline.transform("parsed", "parse_json", input="incoming", schema="station STRING, celsius STRING")


@pipeline.transform(input="parsed", mode="rows", schema="station STRING, celsius DOUBLE")
def checked(row: dict[str, Any]) -> dict[str, Any] | None:
    """An exception here is the dead letter of this one event, with the exception as its reason."""
    if row["celsius"] == "":
        return None  # nothing was measured: dropped, and acknowledged
    return {"station": row["station"], "celsius": float(row["celsius"])}


@pipeline.transform(input=checked)
def with_fahrenheit(rows: DataFrame) -> DataFrame:
    """Any PySpark, as long as the column `_origin` stays: by it the rows are accounted for."""
    return rows.withColumn("fahrenheit", F.round(F.col("celsius") * 9 / 5 + 32, 1))


pipeline.sink("table", "sqlite", input=with_fahrenheit, path="./out/readings.db", table="readings")

if __name__ == "__main__":
    raise SystemExit(pipeline.run(once=True))
