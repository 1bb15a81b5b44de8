"""Log, ledger and pipeline that do not belong together: refused, named, and a way on that loses nothing."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from signoff.errors import StateError
from tests.promises.product import SOON

pytestmark = pytest.mark.spark

FILES = {"type": "files", "path": "in/*.jsonl", "on_acknowledge": "move", "on_refuse": "move"}
ROWS = {"type": "parse_json", "input": "incoming", "schema": "n BIGINT"}


def numbered(first: int, count: int) -> list[dict[str, int]]:
    return [{"n": n} for n in range(first, first + count)]


def pipeline(webhook: Any, source: str = "incoming") -> dict[str, Any]:
    return {
        "sources": {source: FILES},
        "transforms": {"rows": {**ROWS, "input": source}},
        "sinks": {"hook": {"type": "http", "input": "rows", "url": webhook.url, "retry": SOON}},
    }


def got(webhook: Any) -> list[int]:
    return sorted(row["n"] for row in webhook.accepted)


@pytest.mark.case(43)
def test_a_log_that_was_moved_away_is_refused_and_starting_over_loses_nothing(inline, webhook):
    product = inline(**pipeline(webhook))
    product.put("1.jsonl", numbered(0, 10))
    assert product.run_once().code == 0
    webhook.down()
    product.put("2.jsonl", numbered(10, 5))
    assert product.run_once(patience_s=1.0).code == 3
    webhook.up()

    shutil.move(product.state / "log" / "incoming", product.directory / "moved")
    product.put("3.jsonl", numbered(15, 5))
    with pytest.raises(StateError, match="signoff sources reset FILE incoming"):
        product.run_once()
    assert product.command("audit", str(product.file)).code == 1
    assert got(webhook) == list(range(10)), "nothing was received"

    done = product.command("sources", "reset", str(product.file), "incoming", "--yes")
    assert done.code == 0 and "5 events discarded" in done.output and "incoming/15" in done.output
    assert product.run_once().code == 0
    assert "incoming/12: refused" in product.command("explain", str(product.file), "incoming/12").output
    assert {row["event_id"] for row in webhook.accepted if row["n"] >= 15} <= {
        f"incoming/{n}" for n in range(15, 30)
    }
    assert set(range(15, 20)) <= set(got(webhook))
    refused = {path.name for path in (product.directory / "in" / "refused").glob("*")}
    assert set(got(webhook)) >= set(range(10, 15)) or "2.jsonl" in refused, (
        "read again, or said to be refused"
    )
    assert product.account()["in_flight"] == 0


@pytest.mark.case(44)
def test_a_renamed_source_is_named_until_it_is_back_or_given_up(inline, webhook):
    product = inline(**pipeline(webhook))
    webhook.down()
    product.put("1.jsonl", numbered(0, 5))
    assert product.run_once(patience_s=1.0).code == 3
    webhook.up()

    product.write(pipeline(webhook, "renamed"))
    shutil.move(product.directory / "in", product.directory / "elsewhere")
    (product.directory / "in").mkdir()
    done = product.run_once()
    assert done.code == 3, "something is still owed"
    assert (
        'source "incoming" is not in the pipeline any more, and 5 of its events are not settled'
        in done.output
    )
    assert product.status()["stranded"]["incoming"]["in_flight"] == 5
    assert "incoming is not in the pipeline any more" in product.command("status", str(product.file)).output
    assert product.audit()["stranded"] == ["incoming"] and product.balanced
    assert "incoming" in product.command("sources", "list", str(product.file)).output
    assert got(webhook) == []

    product.write(pipeline(webhook))
    shutil.move(product.directory / "elsewhere" / "1.jsonl", product.directory / "in" / "1.jsonl")
    assert product.run_once().code == 0
    assert got(webhook) == list(range(5)) and product.status()["stranded"] == {}


@pytest.mark.case(44)
def test_a_source_that_was_removed_can_be_given_up(inline, webhook):
    product = inline(**pipeline(webhook))
    webhook.down()
    product.put("1.jsonl", numbered(0, 5))
    assert product.run_once(patience_s=1.0).code == 3
    with pytest.raises(AssertionError, match='"incoming" is in the pipeline'):
        product.command("sources", "drop", str(product.file), "incoming", "--yes")

    product.write(pipeline(webhook, "renamed"))
    (product.directory / "in" / "1.jsonl").unlink()
    done = product.command("sources", "drop", str(product.file), "incoming", "--yes")
    assert done.code == 0 and "5 events discarded" in done.output
    assert product.run_once().code == 0
    assert product.account()["refused"] == 5 and product.audit()["stranded"] == []


KEPT = {"type": "files", "path": "in/*.jsonl"}


@pytest.mark.case(43)
def test_a_project_that_is_moved_or_copied_reads_nothing_again_and_is_no_second_consumer(inline, webhook):
    nodes = {
        "sources": {"incoming": KEPT},
        "transforms": {"rows": ROWS},
        "sinks": {"out": {"type": "sqlite", "input": "rows", "path": "out.db", "table": "events"}},
    }
    product = inline("one", **nodes)
    product.put("1.jsonl", numbered(0, 10))
    assert product.run_once().code == 0

    here = product.directory
    ways = [
        ("moved", lambda to: shutil.move(here, to)),
        ("copied", lambda to: shutil.copytree(here.with_name("moved"), to, copy_function=shutil.copy)),
        ("synced", lambda to: shutil.copytree(here.with_name("copied"), to)),  # keeps times, not inodes
    ]
    for count, (name, way) in enumerate(ways, 1):
        way(here.with_name(name))
        product = inline(name, **nodes)
        product.put(f"{count + 1}.jsonl", numbered(10 * count, 10))
        assert product.run_once().code == 0
        assert product.account()["received"] == 10 * (count + 1)
        assert sorted(row["n"] for row in product.table()) == list(range(10 * (count + 1)))

    nodes["sinks"]["hook"] = {"type": "http", "input": "rows", "url": webhook.url, "retry": SOON}
    for name in ("synced", "copied"):
        product = inline(name, **nodes)
        product.put("9.jsonl", numbered(90, 1))
        assert product.run_once().code == 0, "each has a state of its own since it ran as a copy"
    shutil.copytree(here.with_name("synced"), here.with_name("second"))
    second = inline("second", **nodes)
    second.put("10.jsonl", numbered(100, 1))
    with pytest.raises(StateError, match=r"state-copied.*hook"):
        second.run_once()
    assert got(webhook) == [90, 90], "the copy has received and sent nothing"
    shutil.rmtree(here.with_name("synced"))
    assert second.run_once().code == 0 and got(webhook) == [90, 90, 100]
