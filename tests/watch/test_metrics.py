"""Metrics: what is asked for exists, what may not be in them is not, and the files that ship with them fit.

That they add up to the account is asked of random runs (`tests/engine/test_true_sentences.py`) and of a real
one (`tests/promises/test_metrics.py`).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from signoff import load
from signoff.errors import SignoffError
from signoff.intake.settle_times import BOUNDS_S
from signoff.watch import metrics_server
from signoff.watch.memory import resident_bytes
from signoff.watch.metrics import FAMILIES, registry_of
from signoff.watch.metrics_server import Address, serve_metrics

ROOT = Path(__file__).parents[2]
CONTRIB = ROOT / "contrib"
_KINDS = ("_total", "_bucket", "_sum", "_count")
PIPELINE = """
name: alarms
sources:
  incoming: {type: files, path: "./in/*.jsonl"}
transforms:
  fresh: {type: dedupe, input: incoming, keys: [payload]}
  hourly: {type: window, input: incoming, time: received_at, size: 1h, aggregates: {n: count(*)}}
  bursts: {type: fold, input: incoming, keys: [payload], count: 5, timeout: 1m, columns: {n: count(*)}}
sinks:
  table: {type: sqlite, input: fresh, path: ./out.db, table: alarms, buffer: {max_bytes: 2000000}}
  hours: {type: sqlite, input: hourly, path: ./out.db, table: hours}
  folds: {type: sqlite, input: bursts, path: ./out.db, table: folds}
"""


@pytest.fixture
def text(tmp_path: Path) -> Iterator[str]:
    """What is scraped of a pipeline that never ran."""
    file = tmp_path / "alarms.yaml"
    file.write_text(PIPELINE)
    yield generate_latest(registry_of(load(file), lambda: {"run": os.getpid()})).decode()


def used_in(text: str) -> set[str]:
    """Metrics that an expression names, without what a kind of metric appends."""
    names = set(re.findall(r"\bsignoff_\w+", text))
    return {_base(name) for name in names}


def _base(name: str) -> str:
    return next(
        (name.removesuffix(end) for end in _KINDS if name.endswith(end) and name not in FAMILIES), name
    )


def test_a_pipeline_that_never_ran_has_metrics_of_all_its_nodes(text: str) -> None:
    found = {family.name for family in text_string_to_metric_families(text)}
    rare = {  # of what has to happen first
        "signoff_undelivered_rows", "signoff_dead_letters", "signoff_window_watermark_timestamp_seconds",
    }  # fmt: skip
    assert FAMILIES.keys() - rare <= found
    assert found - FAMILIES.keys() == {"signoff_pipeline_info"}


def test_the_dashboard_and_the_rules_use_metrics_that_exist() -> None:
    dashboard = json.loads((CONTRIB / "grafana" / "signoff.json").read_text())
    asked = " ".join(target["expr"] for panel in dashboard["panels"] for target in panel["targets"])
    rules = re.findall(r"^ +expr: (.*)$", (CONTRIB / "prometheus" / "alerts.yml").read_text(), re.MULTILINE)
    assert len(rules) == 8
    for used in (used_in(asked), used_in(" ".join(rules))):
        assert used <= FAMILIES.keys()
    places = [tuple(panel["gridPos"].values()) for panel in dashboard["panels"]]
    assert len(set(places)) == len(places)


def test_the_dashboard_is_what_its_script_writes(tmp_path: Path) -> None:
    copy = tmp_path / "scripts" / "grafana-dashboard"
    copy.parent.mkdir()
    copy.write_bytes((ROOT / "scripts" / "grafana-dashboard").read_bytes())
    (tmp_path / "contrib" / "grafana").mkdir(parents=True)
    subprocess.run([sys.executable, str(copy)], check=True)
    written = tmp_path / "contrib" / "grafana" / "signoff.json"
    assert written.read_text() == (CONTRIB / "grafana" / "signoff.json").read_text()


def test_the_docs_name_every_metric() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    assert used_in(page) - {"signoff_pipeline_info"} == FAMILIES.keys()


def test_promtool_finds_nothing_to_say_of_metrics_and_rules(text: str) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip(
            "promtool is not installed (Debian: apt-get install prometheus; scripts/set-up-prometheus)"
        )
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    rules = str(CONTRIB / "prometheus" / "alerts.yml")
    done = subprocess.run([promtool, "check", "rules", rules], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "8 rules found" in done.stdout


def test_buckets_reach_from_one_batch_to_half_an_hour() -> None:
    assert list(BOUNDS_S) == sorted(BOUNDS_S)
    assert (BOUNDS_S[0], BOUNDS_S[-1]) == (0.05, 1800.0)


def test_memory_is_that_of_a_process_and_of_all_it_has_started() -> None:
    one = resident_bytes({"run": os.getpid()})["run"]
    with subprocess.Popen(
        [sys.executable, "-c", "kept = bytearray(b'x' * 50_000_000); print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert resident_bytes({"run": os.getpid()})["run"] > one + 45_000_000
        apart = resident_bytes({"run": os.getpid(), "child": child.pid})
        assert apart["child"] > 45_000_000 > apart["run"] - one
        child.communicate(b"\n")
    assert resident_bytes({"gone": child.pid}) == {"gone": 0}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("9100", Address("127.0.0.1", 9100)),
        ("0.0.0.0:9100", Address("0.0.0.0", 9100)),
        ("[::1]:9100", Address("::1", 9100)),
    ],
)
def test_an_address_is_a_port_or_host_and_port(text: str, found: Address) -> None:
    assert Address.parse(text) == found
    assert Address.parse(str(found)) == found


@pytest.mark.parametrize("text", ["", "x", ":9100", "host:", "70000", "-1", "٩", "host:9100/metrics"])
def test_another_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a port"):
        Address.parse(text)


def test_a_port_that_is_taken_is_an_error_that_says_so(tmp_path: Path) -> None:
    file = tmp_path / "alarms.yaml"
    file.write_text(PIPELINE)
    graph = load(file)
    with serve_metrics(graph, dict, Address("127.0.0.1", 0)) as first:
        assert httpx.get(f"http://{first}/metrics").status_code == 200
        with pytest.raises(SignoffError, match=r"\[metrics-address\]"), serve_metrics(graph, dict, first):
            pass


def test_connections_that_say_nothing_take_the_run_a_few_files_and_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "alarms.yaml"
    file.write_text(PIPELINE)
    monkeypatch.setattr(metrics_server, "_MOST_CONNECTIONS", 3)
    monkeypatch.setattr(metrics_server._Handler, "timeout", 0.5)
    with serve_metrics(load(file), dict, Address("127.0.0.1", 0)) as address, ExitStack() as opened:
        clients = [
            opened.enter_context(socket.create_connection((address.host, address.port), 10)) for _ in range(8)
        ]
        assert [client.recv(1) for client in clients] == [b""] * 8  # five at once, three after a while
        assert httpx.get(f"http://{address}/metrics", trust_env=False).status_code == 200
