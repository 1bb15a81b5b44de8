"""Case 33: an event on which the plan itself fails is found, and its neighbours are delivered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from signoff.engine.query import base as query
from tests.promises.product import SPARK

pytestmark = [pytest.mark.spark]

FILES = {"type": "files", "path": "in/*.jsonl"}
ROWS = {"type": "parse_json", "input": "incoming", "schema": "n BIGINT, text STRING"}
ARCHIVE = {"type": "files", "input": "picked", "path": "out"}
DEADLY = """
import os
import time
from pathlib import Path

from pyspark.sql import functions as F


@F.udf("bigint")
def deadly(n):
    if n == 7:
        deaths, go = Path(__file__).with_name("deaths"), Path(__file__).with_name("go")
        with deaths.open("a") as file:
            file.write("x")
        while deaths.stat().st_size > 1 and not go.exists():
            time.sleep(0.05)
        os._exit(11)
    return n


def picked(df):
    return df.withColumn("n", deadly("n"))
"""


def written(folder: Path) -> list[int]:
    return sorted(
        json.loads(line)["n"] for file in folder.glob("*.jsonl") for line in file.read_text().splitlines()
    )


def numbered(count: int) -> list[dict[str, Any]]:
    return [{"n": n, "text": "no number" if n == 7 else str(n)} for n in range(count)]


def assert_only_seven_is_a_dead_letter(product: Any, count: int, reason: str) -> None:
    (letter,) = product.dead_letters()
    assert letter["event_id"] == "incoming/7" and json.loads(letter["payload"])["n"] == 7
    assert reason in letter["reason"] and "the plan fails on it" in letter["reason"]
    account = product.account()
    assert (account["delivered"], account["dead_lettered"]) == (count - 1, 1)
    assert written(product.directory / "out") == [n for n in range(count) if n != 7], "each neighbour once"


@pytest.fixture
def untried(monkeypatch: pytest.MonkeyPatch) -> None:
    """An SQL expression is not tried row by row: it fails the plan, as what nobody foresaw does."""
    monkeypatch.setattr("signoff.transforms.frame.may_fail", lambda *_: False)


@pytest.mark.case(33)
def test_an_event_the_plan_fails_on_is_found_and_its_neighbours_are_delivered(inline, untried):
    picked = {"type": "filter", "input": "rows", "where": "cast(text AS INT) >= 0"}
    product = inline(
        sources={"incoming": FILES}, transforms={"rows": ROWS, "picked": picked}, sinks={"archive": ARCHIVE}
    )
    product.put("1.jsonl", numbered(20))
    assert product.run_once(120).code == 0
    assert_only_seven_is_a_dead_letter(product, 20, "CAST_INVALID_INPUT")


def jobs(spark: Any) -> int:
    """Spark jobs so far: each run of a plan is one."""
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(10_000)
    return len(spark.sparkContext.statusTracker().getJobIdsForGroup("signoff tested/incoming"))


@pytest.mark.case(33)
def test_a_poison_event_among_100_000_is_found_with_few_runs(inline, spark, untried):
    picked = {"type": "filter", "input": "rows", "where": "1 / (n - 7) IS NOT NULL"}
    product = inline(
        sources={"incoming": FILES}, transforms={"rows": ROWS, "picked": picked}, sinks={"archive": ARCHIVE}
    )
    product.put("1.jsonl", numbered(100_000))
    before = jobs(spark)
    running = product.start("--once", engine_when=lambda: product.received() == 100_000)
    assert running.wait(300).code == 0
    assert_only_seven_is_a_dead_letter(product, 100_000, "DIVIDE_BY_ZERO")
    assert running.output.count("trying it again") == 1, "it was one batch, and failed once"
    assert jobs(spark) - before <= 10, "the pass, a second try, seven of the search, the pass without it"


@pytest.mark.case(33)
def test_poison_is_found_in_a_pipeline_that_keeps_state(inline, monkeypatch, untried):
    runs, touch = [], query.touch
    monkeypatch.setattr(query, "touch", lambda df: (runs.append(df), touch(df)))
    product = inline(
        sources={"incoming": FILES},
        transforms={
            "rows": ROWS,
            "seen": {"type": "dedupe", "input": "rows", "keys": ["n"]},
            "picked": {"type": "filter", "input": "seen", "where": "1 / (n - 7) IS NOT NULL"},
        },
        sinks={"archive": ARCHIVE},
    )
    product.put("1.jsonl", numbered(20))
    assert product.run_once(120).code == 0
    assert_only_seven_is_a_dead_letter(product, 20, "DIVIDE_BY_ZERO")
    assert len(runs) == 5, "also behind the step that brings events together Spark can say whose task failed"
    product.put("2.jsonl", [{"n": 6}, {"n": 20}])
    assert product.run_once().code == 0
    assert written(product.directory / "out") == [n for n in range(21) if n != 7], "6 was seen before"


@pytest.mark.case(33)
def test_several_poison_events_of_a_batch_are_all_found(inline, untried):
    picked = {"type": "filter", "input": "rows", "where": "1 / (n % 7) IS NOT NULL"}
    product = inline(
        sources={"incoming": FILES}, transforms={"rows": ROWS, "picked": picked}, sinks={"archive": ARCHIVE}
    )
    product.put("1.jsonl", numbered(9))
    assert product.run_once(120).code == 0
    letters = [letter["event_id"] for letter in product.dead_letters()]
    assert sorted(letters) == ["incoming/0", "incoming/7"], "found as their tasks fail"
    assert product.account()["delivered"] == 7


@pytest.mark.case(33)
def test_a_poison_event_can_be_replayed_once_the_pipeline_is_mended(inline, untried):
    picked = {"type": "filter", "input": "rows", "where": "1 / (n - 7) IS NOT NULL"}
    nodes = {"sources": {"incoming": FILES}, "transforms": {"rows": ROWS, "picked": picked}}
    product = inline(**nodes, sinks={"archive": ARCHIVE})
    product.put("1.jsonl", numbered(10))
    assert product.run_once(120).code == 0
    mended = {**nodes, "transforms": {"rows": ROWS, "picked": {**picked, "where": "n IS NOT NULL"}}}
    product.write({**mended, "sinks": {"archive": ARCHIVE}})
    running = product.start()
    done = product.command("dead-letters", "replay", str(product.file), "--all")
    assert done.code == 0, done.output
    assert written(product.directory / "out") == list(range(10))
    running.terminate()
    assert product.account()["delivered"] == 10 and product.dead_letters() == []


@pytest.mark.case(33)
@pytest.mark.crash
def test_an_event_that_kills_its_worker_is_found_also_after_a_kill_during_the_search(real):
    product = real(
        sources={"incoming": FILES},
        transforms={"rows": ROWS, "picked": {"type": "python", "input": "rows", "function": "deadly:picked"}},
        sinks={"archive": ARCHIVE},
        spark=SPARK | {"master": "local[2,1]"},  # each task once: a worker takes seconds to die
    )
    (product.directory / "deadly.py").write_text(DEADLY)
    product.put("1.jsonl", numbered(10))
    running = product.start()
    running.wait_for(lambda: "trying it again" in running.output)
    product.kill9(product.engine_pid())
    (product.directory / "go").touch()
    running.wait_for(lambda: product.told_upto() == 10)
    assert running.output.count("trying it again") >= 2, "the search was cut off and begun again"
    running.terminate()
    assert_only_seven_is_a_dead_letter(product, 10, "")
