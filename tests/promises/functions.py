"""Functions for `python` steps, where Spark's workers find them."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812


def fail_on_seven(row: dict[str, Any]) -> dict[str, Any]:
    if row["n"] == 7:
        raise ValueError("seven is not allowed")
    return {"n": row["n"]}


def three_ways(row: dict[str, Any]) -> dict[str, Any] | list[dict[str, Any]] | None:
    """None for 0, the row itself for 1, two rows for anything else."""
    n = row["n"]
    if n == 0:
        return None
    return {"n": n} if n == 1 else [{"n": n}, {"n": -n}]


def wrong_type(row: dict[str, Any]) -> dict[str, Any]:
    return {"n": "text" if row["n"] == 7 else row["n"]}


def unchanged(df: DataFrame) -> DataFrame:
    return df


def twice(df: DataFrame) -> DataFrame:
    return df.where("n <> 3").withColumn("twice", F.col("n") * 2)


def lose_origins(df: DataFrame) -> DataFrame:
    return df.select("n")
