"""Functions for `python` steps, where Spark's workers find them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Window
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


def without_twos(df: DataFrame) -> DataFrame:
    return df.where("n % 5 <> 2")


def numbered(df: DataFrame) -> DataFrame:
    """Depends on which other rows are there."""
    return df.withColumn("place", F.row_number().over(Window.orderBy("n")))


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


class _NoText(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def odd(row: dict[str, Any]) -> Any:
    """Every 250th event comes back as something that does not fit, or not at all."""
    n = row["n"]
    ways: list[Callable[[], Any]] = [
        lambda: {"text": "\ud800"},
        lambda: {"amount": Decimal("1E+99")},
        lambda: {"amount": Decimal("Infinity")},
        lambda: {"amount": Decimal("NaN")},
        lambda: {"amount": Decimal("0.001")},
        lambda: {"at": datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=2)))},
        lambda: {"at": datetime.max.replace(tzinfo=timezone(timedelta(hours=-2)))},
        lambda: {"text": b"bytes"},
        lambda: {"n": 2**70},
        lambda: {"n": 1.5},
        lambda: _raise(ValueError("\udfff")),
        lambda: _raise(_NoText()),
        lambda: sys.exit(1),
        lambda: signoff.fail("\ud800"),
        lambda: {"tags": 5},
        lambda: {"tags": ["\ud800"]},
        lambda: {"tags": {"a", "b"}},
        lambda: _raise(KeyboardInterrupt()),
        lambda: 5,
        lambda: {"none": 5},
    ]
    if n % 250 == 249:
        return ways[n // 250 % len(ways)]()
    return {"n": n, "text": str(n), "amount": Decimal("1.5"), "tags": ("a", "b"), "at": datetime(2020, 1, 1)}


def deadly(row: dict[str, Any]) -> Any:
    """Ends its worker, which nothing in it can prevent, for every 250th event."""
    if row["n"] % 250 == 249:
        os._exit(11)
    return row


def every_second_time(row: dict[str, Any]) -> dict[str, Any]:
    """Fails for now in every second call for a row: for odd numbers in the first, for even ones in the
    second. Each call leaves a line in a file of its row in the directory `calls`."""
    n = row["n"]
    with (Path(row["calls"]) / str(n)).open("a+") as calls:
        calls.write("called\n")
        calls.seek(0)
        called = len(calls.readlines())
    if (called + n) % 2 == 0:
        raise signoff.fail("it is never there twice in a row", transient=True)
    return {"n": n, "k": str(n % 3)}


def same_rows(events: list[dict[str, Any]]) -> dict[str, Any]:
    return {"k": events[0]["k"], "all": [event["n"] for event in events]}


def as_list(df: DataFrame) -> DataFrame:
    return df.select("k", F.array("n").alias("all"), "_origin")


_shaky = set[str]()


def shaky(row: dict[str, Any]) -> dict[str, Any]:
    """Fails for now in every second call of a worker for the same row."""
    key = repr(row)
    if key not in _shaky:
        _shaky.add(key)
        raise signoff.fail("not the first time", transient=True)
    _shaky.remove(key)
    return row


def not_the_second_time(row: dict[str, Any]) -> dict[str, Any]:
    """Fails for now in the second call for an even number; `calls` as for `every_second_time`."""
    n = row["n"]
    with (Path(row["calls"]) / str(n)).open("a+") as calls:
        calls.write("called\n")
        calls.seek(0)
        called = len(calls.readlines())
    if called == 2 and n % 2 == 0:
        raise signoff.fail("not now", transient=True)
    return {"n": n, "k": str(n % 3)}
