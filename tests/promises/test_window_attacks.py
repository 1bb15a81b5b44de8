"""Windows under attack: names, types and functions of every kind, changes of the pipeline, no room."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import functions as F  # noqa: N812

from signoff.catalog import default
from signoff.engine.spark_check import check
from signoff.pipeline.load import load
from signoff.sources.files import source as files
from signoff.stateful.watermarks import Watermarks
from signoff.transforms.contract import FieldError
from signoff.transforms.window.aggregates import aggregates_of
from signoff.transforms.window.step import state_session
from signoff.transforms.window.watermark_rule import WatermarkRule
from tests.promises.product import FILES, Inline, books
from tests.promises.test_settling import webhook_sink
from tests.promises.test_windows import BEGIN, PARSED, RESULTS, at, pipeline, results, written
from tests.servers import WebhookServer

pytestmark = pytest.mark.spark

Make = Callable[..., Inline]


def late(product: Inline) -> int:
    marks = Watermarks(
        product.state / "links" / "counts.buffer" / "marks.db", WatermarkRule(0), (), readonly=True
    )
    try:
        return sum(marks.late().values())
    finally:
        marks.close_store()


def problems(product: Inline, spark: Any) -> list[tuple[str, str]]:
    return [(one.code, f"{one.message}; {one.hint}") for one in check(load(product.file, default()), spark)]


def test_a_window_behind_a_window_sees_the_ends_of_the_first(inline: Make) -> None:
    nodes = pipeline(FILES, idle_after="1s", aggregates={"mx": "max(n)", "others": "collect_set(n)"})
    nodes["transforms"]["hours"] = {
        "type": "window", "input": "counts", "time": "window_start", "size": "1h", "keys": ["key"],
        "idle_after": "1s",
        "aggregates": {
            "last": "max_by(mx, window_end)", "first": "min_by(mx, window_end)", "ends": "max(window_end)",
            "twice": "count(*)", "again": "count(*)",
        },
    }  # fmt: skip
    nodes["sinks"]["results"] = RESULTS | {"input": "hours"}
    product = inline(**nodes)
    product.put("a.jsonl", [at(0, n=5), at(61, n=3), at(122, n=9), at(185, n=4)])
    assert product.run_once().code == 0
    (row,) = written(product)
    assert (row["first"], row["last"], row["twice"], row["again"]) == (5, 4, 4, 4)
    assert datetime.fromisoformat(row["ends"]).timestamp() == BEGIN + 240


KEYS = {
    "dec": "DECIMAL(38,18)", "dbl": "DOUBLE", "ts": "TIMESTAMP", "ntz": "TIMESTAMP_NTZ", "dt": "DATE",
    "bin": "BINARY", "bool": "BOOLEAN", "i64": "BIGINT", "s": "STRING", "flt": "FLOAT",
}  # fmt: skip
PAIRS: list[tuple[str, Any, Any]] = [
    ("dec", "12345678901234567890.100000000000000001", "12345678901234567890.100000000000000002"),
    ("dbl", 0.1, 0.10000000000000002),
    ("dbl", "NaN", 0.0),
    ("ts", "2020-01-01T00:00:00.000001Z", "2020-01-01T00:00:00.000002Z"),
    ("ntz", "2020-01-01T00:00:00.000001", "2020-01-01T00:00:00.000002"),
    ("dt", "0001-01-01", "9999-12-31"),
    ("bin", "AA==", "AAA="),
    ("bool", True, False),
    ("i64", 2**53, 2**53 + 1),
    ("s", "e\u0301", "\u00e9"),
    ("s", "\u2028", "\x00"),
    ("s", None, ""),
    ("flt", 1.5, 1.25),
]


@pytest.mark.case(34)
def test_events_get_the_fate_of_their_own_result_whatever_the_types_of_the_keys(
    inline: Make, webhook: WebhookServer
) -> None:
    schema = ", ".join(["t TIMESTAMP", "n INT", *(f"{name} {kind}" for name, kind in KEYS.items())])
    window = {"acknowledge": "delivered", "idle_after": "1s", "allowed_lateness": "20s", "keys": [*KEYS]}
    nodes = pipeline(FILES, **window, aggregates={"bad": "max(n)", "events": "count(*)"})
    nodes["transforms"]["parsed"] = PARSED | {"schema": schema}
    nodes["transforms"]["good"] = {"type": "filter", "input": "counts", "where": "bad = 0"}
    nodes["transforms"]["wrong"] = {"type": "filter", "input": "counts", "where": "bad = 1"}
    webhook.answer(400)
    nodes["sinks"] = {
        "results": RESULTS | {"input": "good"},
        "refused": webhook_sink(webhook, "wrong"),
    }
    product = inline(**nodes)
    t = at(0)["t"]
    events = []
    for name, first, second in PAIRS:
        events += [
            {"t": t, name: first, "n": 0},
            {"t": t, name: second, "n": 1},
            {"t": t, name: first, "n": 0},
        ]
    product.put("a.jsonl", events)
    assert product.run_once().code == 0
    # `s: null` is the key of no other pair's first or second, but of every event without it.
    assert product.account() == books(delivered=2 * len(PAIRS), dead_lettered=len(PAIRS))
    assert len(written(product)) == len(PAIRS), "no two results have the same id"
    assert {row["events"] for row in written(product)} == {2}


@pytest.mark.parametrize(
    ("window", "schema", "code", "says"),
    [
        ({"aggregates": {"x": "count(DISTINCT n)"}}, "", "distinct-aggregate", "size(collect_set"),
        ({"aggregates": {"x": "sum(n) + sum(DISTINCT n)"}}, "", "distinct-aggregate", "approx_count"),
        ({"keys": ["odd"]}, ", odd STRING COLLATE UTF8_LCASE", "type-error", "by which a state cannot"),
        ({"aggregates": {"x": "sum(t - timestamp'2020-01-01')"}}, "", "type-error", "unix_micros"),
        ({"aggregates": {"x": "max(t) - min(t)"}}, "", "type-error", "unix_micros"),
        ({"aggregates": {"x": "sum(n) OVER ()"}}, "", "type-error", "OVER"),
        ({"aggregates": {"x": "max(key) + (SELECT 1)"}}, "", "type-error", "a query of its own"),
        ({"aggregates": {"x": "sum(nn)"}}, "", "unresolved-column", "nn"),
        ({"aggregates": {"x": "n + 1"}}, "", "unresolved-column", ""),
    ],
)
def test_check_refuses_what_cannot_be_in_a_window(
    inline: Make, spark: Any, window: dict[str, Any], schema: str, code: str, says: str
) -> None:
    nodes = pipeline(FILES, **window)
    nodes["transforms"]["parsed"] = PARSED | {"schema": PARSED["schema"] + schema}
    product = inline(**nodes)
    ((found, message),) = problems(product, spark)
    assert found == code and says in message


ARGUMENTS: dict[str, str] = {
    "approx_percentile": "n, 0.5", "percentile": "n, 0.5", "percentile_approx": "n, array(0.1, 0.5)",
    "approx_top_k": "key", "approx_top_k_accumulate": "key", "corr": "n, n", "covar_pop": "n, n",
    "covar_samp": "n, n", "count_min_sketch": "n, 0.5, 0.5, 1", "histogram_numeric": "n, 3",
    "max_by": "n, t", "min_by": "n, t", "bitmap_construct_agg": "CAST(n AS BIGINT)", "any": "n > 1",
    "every": "n > 1", "some": "n > 1", "bool_and": "n > 1", "bool_or": "n > 1", "count_if": "n > 1",
    "listagg": "key", "string_agg": "key", "percentile_cont": "0.5", "percentile_disc": "0.5",
    "hll_union_agg": "hll_s", "collect_union": "array(n)",
    "kll_sketch_agg_bigint": "CAST(n AS BIGINT)", "kll_sketch_agg_double": "CAST(n AS DOUBLE)",
    "kll_sketch_agg_float": "CAST(n AS FLOAT)", "tuple_sketch_agg_double": "n, CAST(n AS DOUBLE)",
    "tuple_sketch_agg_integer": "n, n",
}  # fmt: skip
TWO = ("regr_",)
WITHIN = ("percentile_cont", "percentile_disc")


def call(function: str) -> str:
    given = ARGUMENTS.get(function, "n, n" if function.startswith(TWO) else "n")
    return f"{function}({given})" + (" WITHIN GROUP (ORDER BY n)" if function in WITHIN else "")


def shown(function: str) -> str:
    return f"to_json(named_struct('v', {call(function)}))"


ANY_ORDER = ("first", "last", "any_value", "sketch", "theta", "tuple", "kll", "accumulate", "histogram")
"""Which value it is depends on the order of the events, or on chance."""


def alike(function: str, found: str | None, wanted: str | None) -> bool:
    if found is None or wanted is None or function.startswith(ANY_ORDER) or "sketch" in function:
        return (found is None) == (wanted is None)
    one, other = json.loads(found).get("v"), json.loads(wanted).get("v")
    if isinstance(one, list) and isinstance(other, list):
        return sorted(map(str, one)) == sorted(map(str, other))
    if isinstance(one, float) and isinstance(other, float):
        return one == pytest.approx(other)
    return bool(one == other)


def test_every_aggregate_function_of_spark_is_refused_or_gives_what_spark_gives(
    inline: Make, spark: Any
) -> None:
    """Asked all at once: those that are accepted together are run together."""
    registry = spark._jsparkSession.sessionState().functionRegistry()
    every, functions = registry.listFunction().iterator(), []
    while every.hasNext():
        name = every.next()
        if registry.lookupFunction(name).get().getGroup() == "agg_funcs":
            functions.append(str(name.funcName()))
    events = [at(n, "x", n % 7 if n < 35 else 3) for n in range(40)]
    plain = spark.createDataFrame(
        [(datetime.fromisoformat(e["t"]).astimezone(UTC), e["key"], e["n"]) for e in events],
        "t TIMESTAMP, key STRING, n INT",
    )
    wanted: dict[str, Any] = {}
    for function in sorted(functions):
        try:
            wanted[function] = plain.groupBy("key").agg(F.expr(shown(function)).alias("v")).first()["v"]
        except Exception:  # noqa: BLE001 - not even plain Spark computes it of these columns
            continue
    assert len(wanted) > 55
    product = inline(**pipeline(FILES, idle_after="1s", size="1h", aggregates={"v": "count(*)"}))
    accepted = []
    session = state_session(spark)
    for function in wanted:
        try:
            aggregates_of(session, {"v": call(function)})
        except FieldError:
            continue
        accepted.append(function)
    texts = {f"{name}_": shown(name) for name in accepted}
    product.write(pipeline(FILES, idle_after="1s", size="1h", aggregates=texts))
    assert problems(product, spark) == []
    product.put("a.jsonl", events)
    assert product.run_once().code == 0
    (row,) = written(product)
    found = {name: row[f"{name}_"] for name in accepted}
    wrong = {name for name in found if not alike(name, found[name], wanted[name])}
    assert {name: (found[name], wanted[name]) for name in wrong} == {}
    assert len(found) > 55


@pytest.mark.case(35)
def test_a_source_that_is_held_back_is_not_idle_and_no_event_in_order_becomes_late(inline: Make) -> None:
    # A log takes a batch as long as it is below its limit: each file is more than a batch of the source.
    padding = "p" * (files.BATCH_BYTES // 500)
    small = FILES | {"log": {"max_bytes": 2 * files.BATCH_BYTES}, "max_events_per_batch": 500}
    window = {"acknowledge": "delivered", "idle_after": "1s", "allowed_lateness": "0s"}
    product = inline(**pipeline(small, **window))
    for number in range(8):
        events = [at(5 * number + n // 100, "x") | {"padding": padding} for n in range(500)]
        product.put(f"{number}.jsonl", events)
    running = product.start(drain_s=1.0)
    running.wait_for(lambda: 'a window waits for "incoming", which is held back' in running.output)
    assert 0 < product.received() < 4000
    running.terminate()
    assert late(product) == 0 and written(product) == []
    product.write(pipeline(small | {"log": {"max_bytes": 16 * files.BATCH_BYTES}}, **window))
    assert product.run_once().code == 0
    assert product.account() == books(delivered=4000)
    assert late(product) == 0
    assert results(product.table()) == {(0, "x"): (4000, 4000, 1.0)}


@pytest.mark.case(34, 44)
def test_a_window_that_gives_updates_may_give_closed_windows_but_not_the_other_way_round_while_one_is_open(
    inline: Make,
) -> None:
    product = inline(**pipeline(FILES, emit="updates"))
    product.put("a.jsonl", [at(0)])
    assert product.run_once().code == 0
    product.write(pipeline(FILES))
    product.put("b.jsonl", [at(1), at(70)])
    assert product.run_once().code == 0
    product.write(pipeline(FILES, emit="updates"))
    product.put("c.jsonl", [at(2)])
    failed = product.run_once()
    assert failed.code == 2 and "[state-changed]" in failed.output
    renamed = pipeline(FILES)
    renamed["transforms"]["tally"] = renamed["transforms"].pop("counts")
    renamed["sinks"]["results"] = RESULTS | {"input": "tally"}
    product.write(renamed)
    failed = product.run_once()
    assert failed.code == 2 and "[state-left]" in failed.output
    product.write(pipeline(FILES, idle_after="1s"))
    assert product.run_once().code == 0
    assert results(written(product)) == {(0, "x"): (3, 3, 1.0), (60, "x"): (1, 1, 1.0)}
    product.write(renamed)
    assert product.run_once().code == 0
