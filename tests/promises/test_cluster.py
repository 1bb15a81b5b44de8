"""Executors on other machines: what they write is where the driver looks, or the run says that it is not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from signoff.cli import new_plugin
from tests.clusters import SparkCluster, why_no_blind_worker
from tests.examples.packages import pip_install
from tests.promises.product import FILES, HTTP, PARSE, SPARK, Product

SINKS = {
    "table": {"type": "sqlite", "input": "parsed", "path": "./out/rows.db", "table": "events"},
    "archive": {"type": "files", "input": "parsed", "path": "./archive"},
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SparkCluster]:
    if (why := why_no_blind_worker()) is not None:
        pytest.skip(why)
    with SparkCluster(tmp_path / "cluster") as started:
        yield started


def _on(master: str, **further: Any) -> dict[str, Any]:
    config = {**SPARK["config"], "spark.executor.memory": "512m", "spark.driver.host": "127.0.0.1"}
    return {"master": master, "config": config, **further}


@pytest.mark.spark
@pytest.mark.crash
def test_a_worker_without_the_shared_disk_writes_nothing_that_counts_as_delivered(
    tmp_path: Path, cluster: SparkCluster
) -> None:
    """It joins while the run goes on; its tasks fail, and the other worker's deliver. Started anew with this
    worker alone, the run refuses to begin."""
    nodes = {"sources": {"incoming": HTTP}, "transforms": {"parsed": PARSE}, "sinks": SINKS}
    seeing = cluster.add_worker()
    with Product(tmp_path / "p", spark=_on(cluster.master, shared=True), **nodes) as product:
        (product.directory / "out").mkdir()
        running = product.start()
        first = product.post([{"n": 0}])
        running.wait_for(first.done)
        assert first.result().status_code == 200, running.output

        cluster.add_worker(blind=product.directory / "out")
        for number in range(1, 400):
            answer = product.post([{"n": number}])
            running.wait_for(answer.done)
            assert answer.result().status_code == 200, running.output
            if "[not-shared]" in (product.state / "spark.log").read_text(errors="replace"):
                break
        else:
            pytest.fail("the worker was never asked, or nobody noticed")
        delivered = product.account()["delivered"]
        assert product.account() == {**product.account(), "received": number + 1, "delivered": number + 1}
        assert sorted(row["n"] for row in product.table(file="out/rows.db")) == list(range(delivered))
        assert running.terminate().code == 0
        assert not [*product.directory.glob("*/.signoff-*"), *product.state.glob("shared/.signoff-*")]

        cluster.stop(seeing)
        done = product.start().wait()
        assert done.code == 2 and "[not-shared]" in done.output, done.output
        assert str(product.directory / "out") in done.output


@pytest.mark.spark
@pytest.mark.crash
def test_a_worker_without_the_package_of_a_sink_is_found_before_an_event_is_touched(
    tmp_path: Path, cluster: SparkCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    new_plugin.write("sink", "acme", tmp_path / "signoff-acme")
    pip_install(site, [tmp_path / "signoff-acme"])
    monkeypatch.setenv("PYTHONPATH", str(site))
    cluster.add_worker(blind=site)
    nodes = {"sources": {"incoming": FILES}, "transforms": {"parsed": PARSE}}
    sink = {"type": "acme", "input": "parsed", "path": "./out"}
    with Product(
        tmp_path / "p", spark=_on(cluster.master, shared=True), sinks={"out": sink}, **nodes
    ) as product:
        product.put("a.jsonl", [{"n": 0}])
        done = product.run_once()
        assert done.code == 2 and "[not-shared]" in done.output, done.output
        assert "signoff_acme/" in done.output, done.output
        assert [*product.directory.glob("in/*.jsonl")]
