"""What a window computes is what plain Spark computes, whichever way its events took to the state."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812

from signoff.engine.state_queries.rows_source import parsed_rows
from signoff.link.handover import LinkPlace
from signoff.log import LogReader
from signoff.sinks.contract import BatchRef, Part
from signoff.stateful.window_sinks import WindowIntake, WindowIntakeConfig
from signoff.transforms.contract import Step
from signoff.transforms.frame import View, begin
from signoff.transforms.window.step import (
    WindowConfig,
    WindowInput,
    link_schema,
    measures_of,
    merged,
    state_session,
)
from signoff.transforms.window.watermark_rule import WatermarkRule

pytestmark = pytest.mark.spark

COLUMNS = (
    "_sequence BIGINT, received_at TIMESTAMP, error STRING, t TIMESTAMP, key STRING, i8 TINYINT, i32 INT, "
    "i64 BIGINT, f FLOAT, d DOUBLE, dec DECIMAL(10,2), dec28 DECIMAL(28,3), dec38 DECIMAL(38,0), b BOOLEAN, "
    "s STRING, bin BINARY, dt DATE, ts TIMESTAMP, ntz TIMESTAMP_NTZ, st STRUCT<a: INT, b: STRING>, "
    "ar ARRAY<INT>, window_end TIMESTAMP, `__start` BIGINT, event_id STRING, `__time` BIGINT"
)
BEGIN = datetime(2020, 1, 1, tzinfo=UTC)
SIMPLE = {
    **{f"n_{c}": f"count({c})" for c in ("i8", "d", "s", "st", "ar")},
    "n": "count(*)", "none": "count(NULL)", "some": "count(*) FILTER (WHERE i32 > 0)",
    **{f"sum_{c}": f"sum({c})" for c in ("i8", "i32", "i64", "f", "d", "dec", "dec28")},
    **{f"avg_{c}": f"avg({c})" for c in ("i8", "i64", "f", "d")}, "mean": "mean(i32)",
    **{
        f"{m}_{c}": f"{m}({c})"
        for m in ("min", "max")
        for c in ("i8", "i64", "f", "d", "dec", "dec38", "b", "s", "bin", "dt", "ts", "ntz")
    },
    "ratio": "sum(i32) / count(*)", "argument": "sum(CAST(i8 AS INT) * 2 + 1)", "rounded": "round(avg(d), 2)",
    "if_some": "sum(i64) FILTER (WHERE (CAST(i8 AS INT) + 1) IS NULL OR i32 IN (1, 2))",
    "named": "upper(max(s))",
    "failing": "element_at(array(count(*)), 2)", "start": "max(`__start`)", "id": "min(event_id)",
    "zero": "sum(i32) / (count(*) - count(*))",
}  # fmt: skip
OTHER = {
    "sum_dec38": "sum(dec38)", "avg_dec": "avg(dec)", "max_st": "max(st)", "min_ar": "min(ar)",
    "latest": "max_by(i32, window_end)", "sorted": "array_sort(collect_list(i32))",
    "set": "size(collect_set(s))", "sd": "stddev(d)", "median": "median(i32)",
    "within": "percentile_cont(0.5) WITHIN GROUP (ORDER BY i32 DESC)",
    "each": "transform(array_sort(collect_list(i32)), x -> x + 1)", "first": "first(key) IGNORE NULLS",
    "any": "any_value(key)", "big": "max((i32, s))", "tried": "try_sum(i32)",
    "hidden": "max_by(i32, `__time`)",
}  # fmt: skip
EXACT = {
    "sum_i64": "try_cast(sum(CAST(i64 AS DECIMAL(38, 0))) AS BIGINT)",
    "sum_dec38": "try_sum(dec38)",
    "if_some": "try_cast(sum(CAST(i64 AS DECIMAL(38, 0))) "
    "FILTER (WHERE (CAST(i8 AS INT) + 1) IS NULL OR i32 IN (1, 2)) AS BIGINT)",
    "failing": "CAST(NULL AS BIGINT)",
}
"""What is wanted where Spark wraps around, or raises."""


def made_up(seed: int, number: int) -> list[tuple[Any, ...]]:
    chance = random.Random(seed)
    many: dict[str, list[Any]] = {
        "i8": [-128, 127, 0, 1], "i32": [-(2**31), 2**31 - 1, 0, 1, 2],
        "i64": [2**63 - 1, -(2**63), 1, -1, 7],
        "f": [math.nan, math.inf, -math.inf, 0.0, 1.5, 3.4e38, -2.25],
        "d": [math.nan, math.inf, 0.0, 1.5, 1e308, -2.25, 5e-324],
        "dec": [Decimal("99999999.99"), Decimal("-0.01"), Decimal("1.10")],
        "dec28": [Decimal("9" * 25 + ".999"), Decimal("-1.001")],
        "b": [True, False], "s": ["", "a", "é", "\U0001f600", "\u2028", 'q"\\\n', "\x00"],
        "bin": [b"", b"\x00\xff", b"a"], "dt": [date(1, 1, 1), date(9999, 12, 31), date(2020, 2, 29)],
        "ts": [BEGIN + timedelta(microseconds=1), datetime(1900, 1, 1, tzinfo=UTC)],
        "ntz": [datetime(2020, 3, 29, 2, 30, 0, 5), datetime(1600, 1, 1)],
        "st": [(1, "x"), (1, None), (2, "a")], "ar": [[], [1], [1, None]],
    }  # fmt: skip
    tame = {"f": [1.5, -2.25, 0.0], "d": [1.5, -2.25, 0.1], "i64": [7, -9]}

    def pick(name: str, key: str | None) -> Any:
        if key == "empty" or chance.random() < 0.15:
            return None
        if name == "dec38":  # of one sign each: else it depends on the order whether Spark overflows
            return Decimal(("-" if key == "y" else "") + chance.choice(["9" * 38, "1", "7"]))
        return chance.choice(tame[name] if key == "tame" and name in tame else many[name])

    names = ("i8", "i32", "i64", "f", "d", "dec", "dec28", "dec38", "b", "s", "bin", "dt", "ts", "ntz", "st")
    found = []
    for n in range(number):
        key = chance.choice(["x", "y", None, "tame", "empty", "rare" if n % 50 == 0 else "x"])
        values = [pick(name, key) for name in (*names, "ar")]
        ends = BEGIN + timedelta(seconds=chance.randrange(10**6))
        minute = BEGIN + timedelta(seconds=chance.randrange(180))
        found.append((n, BEGIN, None, minute, key, *values, ends, n, f"own-{n}", n * 7919 % 1009))
    return found


def handed_on(window: WindowConfig, events: DataFrame) -> tuple[DataFrame, View]:
    """What comes to the sink in front of the state, and its columns."""
    names = [name for name in events.columns if name not in ("_sequence", "received_at", "error")]
    _, view = begin(events, names, "incoming", "dead_letter")
    view = WindowInput(window=window, late_is_read=False).compile(Step("w", Path(), False), view)[None]
    columns = [F.col(physical).alias(name) for name, physical in view.columns.items()]
    own = [F.concat(F.lit("incoming/"), "_sequence").alias("event_id"), F.col("_sequence").alias("_origin")]
    return view.frame.df.where(F.col(view.alive)).select(*own, *columns), view


def computed(
    window: WindowConfig, events: DataFrame, place: LinkPlace, chance: random.Random, *, combines: bool
) -> list[Row]:
    """The results of a window whose events come in random batches and tasks."""
    rows, view = handed_on(window, events)
    kinds = view.frame.schema_of(view)
    measures, all_of_them = measures_of(window, kinds, events.sparkSession)
    sink: WindowIntake = WindowIntakeConfig(
        place=place, sink="w.state", max_bytes=2**30, when_full="block", awaited_by=frozenset(),
        panes=window.panes, keys=window.keys, measures=measures, combines=combines and all_of_them,
        with_origins=chance.random() < 0.5, progress=WatermarkRule(0), sources=frozenset({"incoming"}),
    ).build(Path())  # fmt: skip
    table = rows.toArrow()
    start = 0
    while start < table.num_rows:
        batch = BatchRef("incoming", start, min(start + chance.randrange(1, 150), table.num_rows))
        parts = []
        for task in range(2):
            writer = sink.open(Part(batch, task, attempt=0))
            part = table.slice(batch.start, batch.end - batch.start)
            for piece in part.filter([n % 2 == task for n in range(part.num_rows)]).to_batches():
                assert not writer.write(piece) or piece.num_rows == 0
            if (said := writer.close()) is not None:
                parts.append(said)
        sink.commit(batch, parts)
        start = batch.end
    sink.release()
    log = LogReader(place.log)
    texts = [
        (text if isinstance(text, str) else text.decode(),)
        for _, found in log.read(0, log.head(), ["payload"])
        for text in found.column("payload").to_pylist()
    ]
    session = state_session(events.sparkSession)
    kept = parsed_rows(session.createDataFrame(texts, "payload STRING"), link_schema(window, kinds, session))
    return merged(window, "w", kept).drop("window_end").collect()


def by_group(rows: list[Row]) -> dict[Any, dict[str, Any]]:
    return {(row["window_start"], row["key"]): row.asDict() for row in rows}


def same(found: Any, wanted: Any) -> bool:
    if isinstance(found, float) and isinstance(wanted, float):
        return math.isclose(found, wanted, rel_tol=1e-6) or (math.isnan(found) and math.isnan(wanted))
    return type(found) is type(wanted) and bool(found == wanted)


@pytest.fixture(scope="module")
def events(spark: Any) -> Iterator[DataFrame]:
    found = spark.createDataFrame(made_up(7, 600), COLUMNS).cache()
    yield found
    found.unpersist()


@pytest.fixture(scope="module")
def wanted(events: DataFrame) -> dict[Any, dict[str, Any]]:
    session = state_session(events.sparkSession)
    plain = session.createDataFrame(events.collect(), events.schema)
    start = F.timestamp_micros(F.expr("unix_micros(t) - unix_micros(t) % 60000000"))
    texts = {**SIMPLE, **OTHER, **EXACT}
    found = plain.groupBy(start.alias("window_start"), "key").agg(
        *(F.expr(text).alias(name) for name, text in texts.items())
    )
    return by_group(found.collect())


@pytest.mark.parametrize(
    ("aggregates", "combines"),
    [(SIMPLE, True), (SIMPLE, False), ({**SIMPLE, **OTHER}, True)],
    ids=["put together", "each for itself", "beside others"],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_window_computes_what_spark_computes_whichever_way(
    events: DataFrame,
    wanted: dict[Any, dict[str, Any]],
    aggregates: dict[str, str],
    combines: bool,
    seed: int,
    tmp_path: Path,
) -> None:
    window = WindowConfig.model_validate(
        {"size": "1m", "time": "t", "keys": ["key"], "aggregates": aggregates, "ahead": "1h"}
    )
    place = LinkPlace(tmp_path / "log", tmp_path / "notes")
    found = by_group(computed(window, events, place, random.Random(seed), combines=combines))
    assert found.keys() == wanted.keys()
    wrong = {
        (group, name): (values[name], wanted[group][name])
        for group, values in found.items()
        for name in aggregates
        if not same(values[name], wanted[group][name])
    }
    assert wrong == {}


def test_types_do_not_depend_on_the_way(events: DataFrame) -> None:
    session = state_session(events.sparkSession)

    def kinds(aggregates: dict[str, str]) -> dict[str, str]:
        window = WindowConfig.model_validate(
            {"size": "1m", "time": "t", "keys": ["key"], "aggregates": aggregates}
        )
        _, view = handed_on(window, events)
        rows = link_schema(window, view.frame.schema_of(view), session)
        found = merged(window, "w", session.createDataFrame([], rows)).schema
        return {field.name: json.dumps(field.dataType.jsonValue()) for field in found}

    plain = session.createDataFrame([], events.schema).agg(
        *(F.expr(text).alias(name) for name, text in {**SIMPLE, **OTHER}.items())
    )
    wanted = {field.name: json.dumps(field.dataType.jsonValue()) for field in plain.schema}
    alone, beside = kinds(SIMPLE), kinds({**SIMPLE, **OTHER})
    assert {name: alone[name] for name in SIMPLE} == {name: wanted[name] for name in SIMPLE}
    assert {name: beside[name] for name in wanted} == wanted
