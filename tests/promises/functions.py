"""Functions for `python` steps, where Spark's workers find them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

import signoff


def fail_on_seven(row: dict[str, Any]) -> dict[str, Any]:
    if row["n"] == 7:
        raise ValueError("seven is not allowed")
    return {"n": row["n"]}


def unlucky(row: dict[str, Any]) -> dict[str, Any]:
    if row["n"] % 7 == 3:
        raise ValueError("unlucky")
    return row


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


def wait_for_a_file(row: dict[str, Any]) -> dict[str, Any]:
    """Fails for now while the file `needs` is missing; notes each call in `<needs>.calls`."""
    if row["needs"]:
        needs = Path(row["needs"])
        with Path(f"{needs}.calls").open("a") as calls:
            calls.write(f"{row['n']}\n")
        if not needs.exists():
            raise signoff.fail("it is not there yet", transient=True)
    return {"n": row["n"]}


def every_answer(row: dict[str, Any]) -> Any:
    """What becomes of 0 to 6, said in each way there is."""
    n = row["n"]
    return [
        lambda: {"n": n},
        lambda: signoff.drop("one is not wanted"),
        lambda: _raise(signoff.drop("two is not wanted")),
        lambda: signoff.fail("three is wrong"),
        lambda: _raise(signoff.fail("four is wrong")),
        lambda: [{"n": n}, signoff.drop("half of five"), {"n": -n}, signoff.fail("a part of five")],
        lambda: _raise(signoff.fail("six never comes", transient=True)),
    ][n]()


def _raise(error: Exception) -> None:
    raise error


def summed(events: list[dict[str, Any]]) -> Any:
    """By the key: one event of all, one of each half, none, a failure, or the events one by one."""
    key, numbers = events[0]["k"], [event["n"] for event in events]
    if key == "fail":
        raise ValueError("not this group")
    if key == "drop":
        return signoff.drop("nobody wants it")
    if key == "none":
        return None
    if key == "parity":
        odd = [event for event in events if event["n"] % 2]
        rest = [event for event in events if not event["n"] % 2]
        return [
            signoff.unite(odd, {"k": key, "total": sum(event["n"] for event in odd)}),
            signoff.unite(rest[1:], signoff.fail("only the first even one")),
        ]
    return {"k": key, "total": sum(numbers)}
