"""The pipelines of the application: every variant is a file that loads, and none holds a password."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from signoff import cli, load
from signoff.errors import SignoffError
from signoff.pipeline.graph import Graph
from signoff_alarms import pipeline, topology
from signoff_alarms.__main__ import app

AMQP, DATABASE = "amqp://user:correct-horse@broker/", "postgresql://user:battery-staple@database/alarms"
WINDOWS = {"failed_equipment": (600, None), "grid_voltage": (3600, None), "frequent_failures": (3600, 600)}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """What `signoff` and the broker are asked to do, instead of doing it."""
    made: list[Any] = []

    def signoff(arguments: list[str], **_: object) -> int:
        made.append(arguments)
        return 0

    monkeypatch.setattr(cli, "app", signoff)
    monkeypatch.setattr(topology, "declare", lambda url: made.append(("declare", url)))
    monkeypatch.setattr(topology, "declare_results", lambda url: made.append(("declare_results", url)))
    for name in (pipeline.RABBITMQ, pipeline.POSTGRES):
        monkeypatch.setenv(name, "")  # so that what a command sets is gone afterwards
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return made


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def written(home: str = "alarms") -> Graph:
    graph = load(Path(home) / "pipeline.yaml")
    assert not graph.warnings
    return graph


def types(graph: Graph) -> dict[str, str]:
    return {name: node.config.type for name, node in graph.sinks.items() if not name.endswith("_queue")}


def test_without_servers_results_are_in_files_and_sqlite(calls: list[Any]) -> None:
    assert run("run", "--once", "--count", "1000").exit_code == 0
    assert calls == [["run", "alarms/pipeline.yaml", "--once"]]
    graph = written()
    assert list(graph.sources) == ["stations"]
    assert types(graph) == {
        "notifications": "files",
        "critical_alerts": "files",
        "failed_equipment_table": "sqlite",
        "grid_voltage_table": "sqlite",
        "alerts_table": "sqlite",
        "late_table": "sqlite",
    }
    for name, (size, every) in WINDOWS.items():
        window: Any = graph.nodes[name].config
        assert (window.size, window.every, window.allowed_lateness, window.idle_after) == (
            size,
            every,
            900,
            2,
        )


def test_with_rabbitmq_each_queue_is_a_source_and_results_go_to_the_exchange(calls: list[Any]) -> None:
    done = run("run", "--rabbitmq", AMQP, "--postgres", DATABASE)
    assert done.exit_code == 0
    assert calls == [("declare", AMQP), ("declare_results", AMQP), ["run", "alarms/pipeline.yaml"]]
    graph = written()
    queues: list[Any] = [node.config for node in graph.sources.values()]
    assert [queue.queues for queue in queues] == [
        ("power.grid.voltage.queue",),
        ("humidity.queue",),
        ("total.battery.voltage.queue",),
        ("other.alert.messages.queue",),
    ]
    assert {queue.url.get() for queue in queues} == {AMQP}
    assert set(types(graph).values()) == {"rabbitmq", "postgres"}


@pytest.mark.parametrize("postgres", [False, True])
def test_no_password_stands_in_a_pipeline_file(calls: list[Any], postgres: bool) -> None:
    run("run", "--rabbitmq", AMQP, *(["--postgres", DATABASE] if postgres else []))
    text = Path("alarms/pipeline.yaml").read_text()
    assert "${SIGNOFF_ALARMS_RABBITMQ}" in text
    assert "horse" not in text
    assert "staple" not in text


def test_alarms_may_come_from_files_named_from_here(calls: list[Any], tmp_path: Path) -> None:
    assert run("run", "--files", "in/*.jsonl", "--home", "elsewhere/alarms").exit_code == 0
    source: Any = written("elsewhere/alarms").nodes["stations"].config
    assert source.path == f"{tmp_path}/in/*.jsonl"


def test_alarms_come_from_one_place(calls: list[Any]) -> None:
    done = run("run", "--files", "in/*.jsonl", "--http", "8080")
    assert done.exit_code == 2
    assert "--files and --http" in done.output
    assert not calls


@pytest.mark.parametrize("option", ["--count", "--rate", "--seed"])
def test_options_of_the_simulation_are_refused_without_one(calls: list[Any], option: str) -> None:
    done = run("run", "--files", "in/*.jsonl", option, "5")
    assert done.exit_code == 2 and f"{option}: for simulated alarms" in done.output and not calls


def test_routing_takes_alarms_by_http_and_gives_them_to_the_exchange_as_they_came(calls: list[Any]) -> None:
    assert run("route", "--rabbitmq", AMQP, "--http", "9000").exit_code == 0
    graph = written("alarm_routing")
    source: Any = graph.nodes["stations"].config
    sink: Any = graph.nodes["alarms"].config
    assert (source.type, source.port) == ("http", 9000)
    assert (sink.exchange, sink.body, sink.routing_key) == (
        topology.EXCHANGE,
        "payload",
        "CAST(dataPointId AS STRING)",
    )


def test_a_pipeline_of_somebody_else_is_left_alone(calls: list[Any]) -> None:
    Path("alarms").mkdir()
    Path("alarms/pipeline.yaml").write_text("name: precious")
    done = run("run")
    assert done.exit_code == 1
    assert "give another --home" in done.output
    assert Path("alarms/pipeline.yaml").read_text() == "name: precious"
    assert not calls


def test_the_address_of_a_broker_that_is_away_is_shown_without_its_password(
    calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(url: str) -> None:
        raise SignoffError(f"{url}: cannot connect")

    monkeypatch.setattr(topology, "declare", fail)
    done = run("run", "--rabbitmq", AMQP)
    assert done.exit_code == 1
    assert "cannot connect" in done.output
    assert "correct-horse" not in done.output
