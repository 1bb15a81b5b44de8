"""The application: what its windows say is what the simulation says, computed without Spark; nothing is lost.

Which alarms were late the table of late alarms says. All others must be in the results, each once: so an
alarm that is lost, counted twice or in a wrong window shows.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from statistics import fmean
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from signoff.sources.stations import Simulation, SimulationConfig
from signoff.sources.stations_text import Kind
from signoff_alarms import pipeline, reporting, topology
from signoff_alarms.analyses import Analysis, Home
from signoff_alarms.simulator import Sent, simulate
from tests.alarms import expected
from tests.brokers import RabbitMQ
from tests.promises.product import Inline
from tests.servers import PostgresServer

pytestmark = pytest.mark.spark

Make = Callable[..., Inline]
Alarm = dict[str, Any]
Key = tuple[datetime, int, int, int]
Identity = tuple[Any, ...]
Table = Callable[[str], list[dict[str, Any]]]
COUNT, SEED = 9_000, 11
SIMULATION = {"per_day": 60_000, "errors": 200, "late": 0.03, "late_by": 10_800, "low_battery": 309}
TEN_MINUTES, HOUR = timedelta(minutes=10), timedelta(hours=1)
QUEUES = (*topology.QUEUES.values(), topology.OTHER_QUEUE)
UNSET = 999_999
FIELDS = ("stationId", "dataPointId", "alarmId", "value", "valueThreshold", "isActive")
WINDOWS = ("failed_equipment", "grid_voltage", "battery_low_voltage", "frequent_failures")
RESULTS = ("failed_equipment", "grid_voltage", "battery_low_voltage", "alerts", "bursts")
FORM = ["event_id", "windowStart", "windowEnd", "stationId", "datapointId", "alarmId"]


def sent(count: int) -> list[Alarm]:
    config = SimulationConfig.model_validate(SIMULATION)
    return list(Simulation(SEED, config).messages(0, count).to_pylist())


def is_sound(alarm: Alarm) -> bool:
    return alarm["kind"] in (Kind.ALARM, Kind.DUPLICATE)


def is_failure(alarm: Alarm) -> bool:
    return bool(alarm["alarmId"] == 303)


def is_outage(alarm: Alarm) -> bool:
    return alarm["dataPointId"] == 121 and alarm["alarmId"] in (308, 309)


def is_low_battery(alarm: Alarm) -> bool:
    return alarm["dataPointId"] == 141 and alarm["alarmId"] == 309


def has_no_result(alarm: Alarm) -> bool:
    """A dead letter: it cannot be read, lacks a field, or is to be counted and has no time."""
    if alarm["kind"] in (Kind.NULL_TIME, Kind.ABSURD_TIME):
        return is_failure(alarm) or is_outage(alarm) or is_low_battery(alarm)
    return not is_sound(alarm)


def grouped(
    alarms: Iterable[Alarm], size: timedelta, every: timedelta | None = None
) -> dict[Key, list[Alarm]]:
    """Alarms by start of the window, station, sensor and alarm; computed one by one."""
    found: dict[Key, list[Alarm]] = defaultdict(list)
    step, epoch = every or size, datetime(1970, 1, 1, tzinfo=UTC)
    for alarm in alarms:
        start = alarm["eventTime"] - (alarm["eventTime"] - epoch) % step
        while start + size > alarm["eventTime"]:
            found[start, alarm["stationId"], alarm["dataPointId"], alarm["alarmId"]].append(alarm)
            start -= step
    return found


def deviation(alarms: list[Alarm]) -> float | None:
    known = [one["value"] - one["valueThreshold"] for one in alarms if one["valueThreshold"] != UNSET]
    return fmean(known) if known else None


def results(rows: Iterable[dict[str, Any]], size: timedelta) -> dict[Key, dict[str, Any]]:
    found: dict[Key, dict[str, Any]] = {}
    for row in rows:
        start, end = (_time(row[name]) for name in ("windowStart", "windowEnd"))
        assert end - start == size
        key = (start, row["stationId"], row["datapointId"], row["alarmId"])
        assert key not in found, "a result is there twice"
        found[key] = row
    return found


def _time(value: str | datetime) -> datetime:
    return value if isinstance(value, datetime) else datetime.fromisoformat(value)


def identity(alarm: dict[str, Any]) -> Identity:
    """No two alarms are equal; a duplicate may stand for the message it repeats."""
    return (_time(alarm["eventTime"]), *(alarm[name] for name in FIELDS))


def without(alarms: Iterable[Alarm], missed: Counter[Identity]) -> Iterator[Alarm]:
    left = missed.copy()
    for alarm in alarms:
        if left[identity(alarm)]:
            left[identity(alarm)] -= 1
        else:
            yield alarm


def check_results(alarms: list[Alarm], table: Table) -> dict[str, Counter[Identity]]:
    """Hold the tables against the alarms; returns what each window missed."""
    missed: dict[str, Counter[Identity]] = {name: Counter() for name in WINDOWS}
    for row in table("late_alarms"):
        missed[row["missedBy"]][identity(row)] += 1
    sound = [alarm for alarm in alarms if is_sound(alarm)]
    failures = [alarm for alarm in sound if is_failure(alarm)]
    in_time = without(failures, missed["failed_equipment"])
    found = results(table("failed_equipment"), TEN_MINUTES)
    assert {key: row["numberOfEquipmentFailures"] for key, row in found.items()} == {
        key: len(group) for key, group in grouped(in_time, TEN_MINUTES).items()
    }
    outages = [alarm for alarm in sound if is_outage(alarm)]
    expected = grouped(without(outages, missed["grid_voltage"]), HOUR)
    found = results(table("grid_voltage"), HOUR)
    assert {key: row["numberOfPowerGridVoltageOutrage"] for key, row in found.items()} == {
        key: len(group) for key, group in expected.items()
    }
    for key, group in expected.items():
        assert found[key]["meanDeviation"] == pytest.approx(deviation(group))
    batteries = without(filter(is_low_battery, sound), missed["battery_low_voltage"])
    found = results(table("battery_low_voltage"), HOUR)
    assert {key: row["numberOfBatteryLowVoltage"] for key, row in found.items()} == {
        key: len(group) for key, group in grouped(batteries, HOUR).items()
    }
    check_bursts(list(without(failures, missed["frequent_failures"])), table)
    return missed


def bursts_of(alarms: Iterable[Alarm]) -> dict[Identity, list[Identity]]:
    """For each station, sensor and alarm the bursts, as first, last and number: failures of which each five
    in a row lie within an hour."""
    times: dict[Identity, list[datetime]] = defaultdict(list)
    for alarm in alarms:
        times[alarm["stationId"], alarm["dataPointId"], alarm["alarmId"]].append(alarm["eventTime"])
    found: dict[Identity, list[Identity]] = {}
    for key, each in times.items():
        each.sort()
        starts = [at for at in range(len(each) - 4) if each[at + 4] - each[at] < HOUR]
        runs: list[list[int]] = []
        for at in starts:
            if runs and at <= runs[-1][1]:
                runs[-1][1] = at + 4
            else:
                runs.append([at, at + 4])
        if runs:
            found[key] = [(each[first], each[last], last - first + 1) for first, last in runs]
    return found


def check_bursts(failures: list[Alarm], table: Table) -> None:
    """Each burst has raised one alert, at its fifth failure, and was told of once more when it had ended."""
    due = bursts_of(failures)
    assert due, "there are alerts to be raised"
    raised, ended = table("alerts"), table("bursts")
    ids = [row["event_id"] for row in raised]
    assert len(set(ids)) == len(ids)
    assert [row["alert"] for row in raised] == ids
    assert sorted(row["alert"] for row in ended) == sorted(ids)
    assert {row["numberOfEquipmentFailures"] for row in raised} == {5}
    by_key: dict[Identity, list[Identity]] = defaultdict(list)
    for row in ended:
        times = [_time(row[name]) for name in ("windowStart", "windowEnd")]
        key = tuple(row[name] for name in ("stationId", "datapointId", "alarmId"))
        by_key[key].append((*times, row["numberOfEquipmentFailures"]))
    assert by_key.keys() == due.keys()
    same = 0
    for key, bursts in due.items():
        assert sum(each[2] for each in by_key[key]) == sum(each[2] for each in bursts)
        if len(by_key[key]) == len(bursts):  # else two were raised, and then a failure came between them
            assert sorted(by_key[key]) == bursts
            same += 1
    assert same >= 0.9 * len(due)


def check_messages(messages: list[dict[str, Any]], table: Table, *tables: str) -> None:
    """Each result is a message, in its form."""
    rows = {row["event_id"]: row for name in tables for row in table(name)}
    assert {message["event_id"] for message in messages} == set(rows)
    for message in messages:
        row = rows[message["event_id"]]
        assert list(message)[: len(FORM)] == FORM
        for name in ("windowStart", "windowEnd"):
            assert message[name] == f"{_time(row[name]):%Y-%m-%d %H:%M:%S} UTC"
        told = {name: value for name, value in message.items() if not name.startswith("window")}
        assert told.pop("severity", None) in (None, "critical", "ended")
        assert told.items() <= row.items()


@pytest.mark.case(36)
def test_windows_say_what_the_simulation_says_and_every_alarm_is_in_one_or_late_or_a_dead_letter(
    inline: Make, spark: SparkSession
) -> None:
    product = inline()
    sources = pipeline.simulated(count=COUNT, seed=SEED, max_events_per_batch=2_000, simulation=SIMULATION)
    product.write(pipeline.analysis(pipeline.embedded(sources, idle_after="1s")))
    done = product.run_once(500)
    assert done.code == 0, done.output

    def table(name: str) -> list[dict[str, Any]]:
        return product.table(name, "out/results.db")

    alarms = sent(COUNT)
    missed = check_results(alarms, table)
    assert all(missed.values()), "some came late for each window"
    status = product.status()["windows"]
    assert {name: window["late"] for name, window in status.items()} == {
        name: counter.total() for name, counter in missed.items()
    }
    for name, window in status.items():
        by_sensor = Counter({one["value"]: one["late"] for one in window["late_by"]["dataPointId"]})
        assert by_sensor == Counter(sensor for _, _, sensor, *_ in missed[name].elements())
    dead = {f"stations/{alarm['number']}" for alarm in alarms if has_no_result(alarm)}
    assert {letter["event_id"] for letter in product.dead_letters()} == dead
    account = product.account("stations")
    assert (account["delivered"], account["dead_lettered"], account["in_flight"]) == (
        COUNT - len(dead),
        len(dead),
        0,
    )
    check_messages(product.rows("out/notifications"), table, *RESULTS)
    check_messages(product.rows("out/critical.alerts.queue"), table, "alerts")
    _check_archive(product, alarms)
    _check_reports(product, spark)


def _check_reports(product: Inline, spark: SparkSession) -> None:
    """Late alarms are counted there, so that nothing is missing."""
    alarms = expected.alarms(COUNT, SEED, **SIMULATION)
    begin, end = "2021-05-01T00:00:00Z", "2021-05-02T00:00:00Z"
    period = reporting.Period(datetime.fromisoformat(begin), datetime.fromisoformat(end))
    for name in (Analysis.PART_OF_DAY, Analysis.REPEATED_FAILURES):
        out = product.directory / "told"
        (file,) = reporting.make(Home(product.directory), name, period, ["json"], out, spark=spark)
        found, due = json.loads(file.read_text())["rows"], expected.rows(name, alarms, begin, end)
        assert sorted(map(str, found)) == sorted(map(str, due))


def _check_archive(product: Inline, alarms: list[Alarm]) -> None:
    """Each readable alarm is in the folder of its sensor's queue."""
    readable = [alarm for alarm in alarms if is_sound(alarm)]
    queue_of = topology.QUEUES
    for queue in QUEUES:
        numbers = {int(row["event_id"].split("/")[1]) for row in product.rows(f"out/{queue}")}
        due = {
            alarm["number"]
            for alarm in readable
            if queue_of.get(alarm["dataPointId"], topology.OTHER_QUEUE) == queue
        }
        assert due <= numbers


# -- with RabbitMQ and PostgreSQL

SMALL = 4_000


@pytest.fixture
def broker(rabbitmq: RabbitMQ) -> Iterator[RabbitMQ]:
    """One with the exchanges and queues of the application, empty."""
    _forget(rabbitmq)
    topology.declare(rabbitmq.url)
    topology.declare_results(rabbitmq.url)
    yield rabbitmq
    _forget(rabbitmq)


def _forget(rabbitmq: RabbitMQ) -> None:
    for queue in (*topology.SOURCE_QUEUES, topology.RESULTS_QUEUE, topology.CRITICAL_QUEUE):
        rabbitmq.delete_queue(queue)
    for exchange in (topology.EXCHANGE, f"{topology.EXCHANGE}.other", topology.RESULTS):
        rabbitmq.delete_exchange(exchange)


def test_the_same_from_the_queues_of_rabbitmq_to_its_exchange_and_to_postgresql(
    inline: Make,
    broker: RabbitMQ,
    postgres: PostgresServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(pipeline.RABBITMQ, broker.url)
    monkeypatch.setenv(pipeline.POSTGRES, postgres.url)
    simulation = Simulation(SEED, SimulationConfig.model_validate(SIMULATION))
    with topology.ExchangeTarget(broker.url, SEED) as target:
        simulate(simulation, target, Sent(0), SMALL)
    product = inline()
    places = pipeline.with_rabbitmq(pipeline.from_queues(), idle_after="3s", postgres=True)
    product.write(pipeline.analysis(places))
    # All before the engine begins, so that none of the queues is taken for one that is silent.
    begun = lambda: sum(map(product.received, pipeline.from_queues())) == SMALL  # noqa: E731
    done = product.start("--once", engine_when=begun).wait(500)
    assert done.code == 0, done.output
    with psycopg.connect(postgres.url) as connection:

        def table(name: str) -> list[dict[str, Any]]:
            there = connection.execute("SELECT to_regclass(%s)", (f'"{name}"',)).fetchone()
            if there == (None,):
                return []  # it is made with its first row; whether any is late depends on how alarms came
            cursor = connection.execute(f'SELECT * FROM "{name}"')
            assert cursor.description is not None
            names = [column.name for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

        try:
            check_results(sent(SMALL), table)
            told = [json.loads(message.body) for message in broker.take(topology.RESULTS_QUEUE)]
            check_messages(told, table, *RESULTS)
            critical = [json.loads(message.body) for message in broker.take(topology.CRITICAL_QUEUE)]
            check_messages(critical, table, "alerts")
        finally:
            for name in (*RESULTS, "late_alarms"):
                connection.execute(f'DROP TABLE IF EXISTS "{name}"')
    assert product.balanced
    assert all(broker.count(queue) == 0 for queue in topology.SOURCE_QUEUES)


def test_routing_sends_each_alarm_to_the_queue_of_its_sensor_as_it_came(
    inline: Make, broker: RabbitMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(pipeline.RABBITMQ, broker.url)
    product = inline()
    lines = [alarm["payload"] for alarm in sent(1_000)]
    product.put("alarms.jsonl", [line.decode() for line in lines])
    product.write(pipeline.routing(pipeline.from_files(f"{product.directory}/in/*.jsonl")))
    done = product.run_once()
    assert done.code == 0, done.output
    due = defaultdict(list)
    for line in lines:
        if (fields := _fields(line)) is not None:
            sensor, alarm = fields
            queue = topology.QUEUES.get(sensor, topology.OTHER_QUEUE)
            due[topology.FAILED_QUEUE if alarm == 303 else queue].append(line)
    for queue in topology.SOURCE_QUEUES:
        assert sorted(message.body for message in broker.take(queue)) == sorted(due[queue])
    account = product.account("stations")
    routed = sum(map(len, due.values()))
    assert (account["delivered"], account["dead_lettered"]) == (routed, len(lines) - routed)
    assert routed < len(lines)


def _fields(line: bytes) -> tuple[int, int | None] | None:
    """Sensor and alarm, of a message that can be read so far."""
    try:
        message = json.loads(line)
    except ValueError:
        return None
    sensor, alarm = message.get("dataPointId"), message.get("alarmId")
    return (sensor, alarm) if isinstance(sensor, int) else None


def test_a_queue_that_stands_still_holds_up_no_window_of_another(
    inline: Make, broker: RabbitMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Voltage alarms of the first hours are there and no more come; failures go on, and are counted."""
    monkeypatch.setenv(pipeline.RABBITMQ, broker.url)
    sound = [alarm for alarm in sent(SMALL) if is_sound(alarm) and not alarm["late"]]
    failures = [alarm for alarm in sound if is_failure(alarm)]
    outages = [alarm for alarm in sound if is_outage(alarm)][:50]
    for alarms, key in ((failures, topology.FAILED_KEY), (outages, "121")):
        broker.publish([alarm["payload"] for alarm in alarms], key, exchange=topology.EXCHANGE)
    broker.publish([outages[0]["payload"]], topology.FAILED_KEY, exchange=topology.EXCHANGE)
    product = inline()
    product.write(pipeline.analysis(pipeline.with_rabbitmq(pipeline.from_queues(), idle_after=None)))
    running = product.start()
    upto = max(alarm["eventTime"] for alarm in failures) - timedelta(minutes=15)
    due = {key for key in grouped(failures, TEN_MINUTES) if key[0] + TEN_MINUTES <= upto}

    def counted() -> set[Key]:
        with suppress(sqlite3.OperationalError):  # the table is made with its first row
            return set(results(product.table("failed_equipment", "out/results.db"), TEN_MINUTES))
        return set()

    def raised() -> set[Identity]:
        with suppress(sqlite3.OperationalError):
            rows = product.table("alerts", "out/results.db")
            return {tuple(row[name] for name in ("stationId", "datapointId", "alarmId")) for row in rows}
        return set()

    running.wait_for(lambda: due and counted() == due, 300)
    bursts = set(bursts_of(failures))
    running.wait_for(lambda: bursts and raised() == bursts)
    closed = {name: window["closed_upto"] for name, window in product.status()["windows"].items()}
    assert closed["grid_voltage"] < closed["failed_equipment"]
    (letter,) = product.dead_letters()  # what is in the wrong queue is not counted nowhere without a word
    assert "belongs into another queue" in letter["reason"]
