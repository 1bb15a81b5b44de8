"""The pipelines of the application: every variant is a file that loads, and none holds a password."""

from __future__ import annotations

import sqlite3
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
SIZES = {"failed_equipment": 600, "grid_voltage": 3600, "battery_low_voltage": 3600}
STEPS = (*SIZES, "frequent_failures")


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
        "battery_low_voltage_table": "sqlite",
        "alerts_table": "sqlite",
        "bursts_table": "sqlite",
        "late_table": "sqlite",
    }
    configs: dict[str, Any] = {name: graph.nodes[name].config for name in STEPS}
    assert {name: configs[name].size for name in SIZES} == SIZES
    assert (configs["frequent_failures"].count, configs["frequent_failures"].within) == (5, 3600)
    assert {(config.allowed_lateness, config.idle_after) for config in configs.values()} == {(900, 2)}


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
        ("equipment.failed.queue",),
        ("other.alert.messages.queue",),
    ]
    assert {queue.url.get() for queue in queues} == {AMQP}
    assert {name: graph.upstream_sources(name) for name in STEPS} == {
        "failed_equipment": {"equipment_failed"},
        "frequent_failures": {"equipment_failed"},
        "grid_voltage": {"power_grid_voltage"},
        "battery_low_voltage": {"total_battery_voltage"},
    }
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


def test_alarms_may_come_from_csv_files(calls: list[Any]) -> None:
    assert run("run", "--csv", "in/*.csv").exit_code == 0
    graph = written()
    source: Any = graph.nodes["stations"].config
    assert source.format == "csv"
    assert source.schema_.startswith(
        "station_id BIGINT, datapoint_id INT, alarm_id INT, event_time TIMESTAMP"
    )
    parsed: Any = graph.nodes["parsed_stations"].config
    assert parsed.type == "select" and parsed.columns["stationId"] == "station_id"


def test_windows_and_parallelism_are_options(calls: list[Any]) -> None:
    options = ("--window", "5m", "--voltage-window", "2h", "--lateness", "1m", "--last-events", "10")
    assert run("run", *options, "--parallelism", "3").exit_code == 0
    graph = written()
    sizes = {name: graph.nodes[name].config.size for name in SIZES}  # type: ignore[attr-defined]
    assert sizes == {"failed_equipment": 300, "grid_voltage": 7200, "battery_low_voltage": 7200}
    for name in STEPS:
        window: Any = graph.nodes[name].config
        assert window.allowed_lateness == 60 and window.watermark.last_events == 10
    assert graph.settings.spark.master == "local[3]"


def test_what_is_open_is_closed_when_nothing_in_time_can_come_any_more(calls: list[Any]) -> None:
    """By the clock: a rare alarm must not be late because there was none for a minute."""
    assert run("run", "--window", "5m", "--lateness", "1m").exit_code == 0
    graph = written()
    idle = {name: graph.nodes[name].config.idle_after for name in STEPS}  # type: ignore[attr-defined]
    assert idle == {
        "failed_equipment": 360, "grid_voltage": 3660, "battery_low_voltage": 3660, "frequent_failures": 3660
    }  # fmt: skip


@pytest.mark.parametrize("size", ["soon", "0s", "1.5s"])
def test_a_window_that_is_none_is_refused(calls: list[Any], size: str) -> None:
    done = run("run", "--window", size)
    assert done.exit_code == 2 and f'"{size}"' in done.output and not calls


def test_a_queue_may_have_a_run_of_its_own(calls: list[Any]) -> None:
    assert run("run", "--rabbitmq", AMQP, "--queue", "equipment.failed.queue").exit_code == 0
    graph = written("alarms-equipment.failed")
    assert graph.name == "alarms_equipment_failed"
    (source,) = (node.config for node in graph.sources.values())
    assert source.queues == ("equipment.failed.queue",)  # type: ignore[attr-defined]


def test_a_queue_that_does_not_exist_is_refused(calls: list[Any]) -> None:
    done = run("run", "--rabbitmq", AMQP, "--queue", "equipment.queue")
    assert done.exit_code == 2 and "equipment.failed.queue" in done.output and not calls
    done = run("run", "--queue", "humidity.queue")
    assert done.exit_code == 2 and "--rabbitmq" in done.output


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
        "if(alarmId = 303, 'equipment.failed', CAST(dataPointId AS STRING))",
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


def test_critical_alerts_start_analyses_of_their_station_and_day(calls: list[Any]) -> None:
    assert run("run", "--once").exit_code == 0
    Path("alarms/out").mkdir()
    sqlite3.connect("alarms/out/results.db").close()
    assert run("react", "--once", "--cool-down", "1m").exit_code == 0
    assert calls[-1] == ["run", "alarms/critical/pipeline.yaml", "--once"]
    graph = written("alarms/critical")
    source: Any = graph.nodes["critical_alerts"].config
    assert source.path == "../out/critical.alerts.queue/*.jsonl"
    for name in ("repeated_failures", "voltage_and_failures"):
        sink: Any = graph.sinks[name].config
        assert (sink.type, sink.job, sink.cool_down) == ("job", f"../jobs/{name}.yaml", 60)
        assert (graph.base / sink.job).is_file()
        assert sink.parameters["station"] == "stationId"
        assert sink.parameters["needed_to"] == "windowEnd + INTERVAL 1 SECOND"


def test_with_a_broker_alerts_come_from_their_queue(calls: list[Any]) -> None:
    assert run("run", "--rabbitmq", AMQP).exit_code == 0
    Path("alarms/out").mkdir()
    sqlite3.connect("alarms/out/results.db").close()
    assert run("react", "--rabbitmq", AMQP).exit_code == 0
    source: Any = written("alarms/critical").nodes["critical_alerts"].config
    assert (source.type, source.queues) == ("rabbitmq", ("critical.alerts.queue",))


def test_reactions_need_results(calls: list[Any]) -> None:
    done = run("react")
    assert done.exit_code == 1 and "alarms holds no alarms" in done.output and not calls
