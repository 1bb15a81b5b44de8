"""The pipelines of the application, as files: where alarms come from, what is done, where results go.

What is done is the same everywhere and stands in `pipelines/*.yaml`, which refers to the places by anchors:
`*sources`, with what each of them holds, and `*failures_from` and so on, which of them an analysis reads;
`*parsed`, how they are read (`*alarms`, the sources, where they are not); `*archive`, `*notifications`,
`*critical` and `*storage`, the kinds of sinks. A file that is written here names the places in its first
lines. No address of a server is in it, which may hold a
password: those are in the environment, under the names below.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from signoff.errors import SignoffError
from signoff.pipeline.durations import Duration
from signoff_alarms.simulator import CSV_COLUMNS
from signoff_alarms.topology import CRITICAL_QUEUE, RESULTS, SOURCE_QUEUES

RABBITMQ, POSTGRES = "SIGNOFF_ALARMS_RABBITMQ", "SIGNOFF_ALARMS_POSTGRES"
"""Environment variables with the addresses of the servers."""

Node = Mapping[str, Any]
Part = Literal["analysis", "routing", "critical"]

_FIRST_LINE = "# Written by python -m signoff_alarms; every command of signoff takes this file."


_TIME = "yyyy-MM-dd HH:mm:ss z"
_PARSED: Node = {
    "type": "parse_json",
    "schema": "stationId BIGINT, dataPointId INT, alarmId INT, eventTime TIMESTAMP, value DOUBLE, "
    "valueThreshold DOUBLE, isActive BOOLEAN",
    "timestamp_format": _TIME,
}
_BURST_S = 3600
"""Five failures within this are a burst; it goes on as long after its last one."""
_READS = {
    "failures": "equipment_failed",
    "voltage": "power_grid_voltage",
    "batteries": "total_battery_voltage",
}
"""The source of an analysis, where each queue is one."""
_HOLDS = {
    "power_grid_voltage": "dataPointId = 121 AND alarmId <> 303",
    "humidity": "dataPointId = 115 AND alarmId <> 303",
    "total_battery_voltage": "dataPointId = 141 AND alarmId <> 303",
    "equipment_failed": "alarmId = 303",
    "other_alert_messages": "dataPointId NOT IN (121, 115, 141) AND alarmId <> 303",
}
"""What is in the queue of a source. In the wrong one it would be counted nowhere: it is a dead letter."""
_CSV_TYPES = ("BIGINT", "INT", "INT", "TIMESTAMP", "DOUBLE", "DOUBLE", "BOOLEAN")
_RENAMED: Node = {"type": "select", "columns": {field: column for column, field in CSV_COLUMNS.items()}}


@dataclass(frozen=True)
class Windows:
    """How long they are, and when they are closed."""

    failures: str = "10m"
    """Of failed equipment."""
    voltage: str = "1h"
    """Of the grid's voltage."""
    batteries: str = "1h"
    """Of low voltage of batteries."""
    lateness: str = "15m"
    """How long after its end a window waits for alarms."""
    last_events: int | None = None
    """How far time has come: to the latest alarm, or to the oldest among so many of the newest ones."""

    @property
    def anchors(self) -> dict[str, Any]:
        last = self.last_events
        return {
            "failures_size": self.failures,
            "voltage_size": self.voltage,
            "battery_size": self.batteries,
            "lateness": self.lateness,
            "watermark": "bounded" if last is None else {"last_events": last},
            "window_seconds": self._seconds,
        }

    def idle(self, after: str | None) -> dict[str, str]:
        """How long alarms must stay away, by the clock, for what is open to be closed. By default as long as
        one that is in time could still come: a burst goes on for an hour after its last failure."""
        lateness = _whole_seconds(self.lateness, least=0)
        sizes = {**self._seconds, "bursts": _BURST_S}
        return {f"{name}_idle": after or f"{size + lateness}s" for name, size in sizes.items()}

    @property
    def _seconds(self) -> dict[str, int]:
        return {
            "failures": _whole_seconds(self.failures),
            "voltage": _whole_seconds(self.voltage),
            "battery": _whole_seconds(self.batteries),
        }


@dataclass(frozen=True)
class Places:
    """Where alarms come from, and where the results go."""

    sources: Mapping[str, Node]
    notifications: Node
    critical: Node
    storage: Node
    idle_after: str | None = None
    """How long alarms must stay away for the last windows to be closed; None: as `Windows.idle` says."""
    windows: Windows = Windows()
    is_csv: bool = False
    """Alarms come with the columns of CSV files, not as JSON."""

    @property
    def anchors(self) -> dict[str, Any]:
        return {
            "sources": [{"source": name, "holds": _HOLDS.get(name, "TRUE")} for name in self.sources],
            "all_alarms": [f"complete_{name}" for name in self.sources],
            **{f"{name}_from": self._read_by(source) for name, source in _READS.items()},
            "parsed": _RENAMED if self.is_csv else _PARSED,
            "archive": {"type": "files"},
            "notifications": self.notifications,
            "critical": self.critical,
            "storage": self.storage,
            **self.windows.idle(self.idle_after),
            **self.windows.anchors,
        }

    def _read_by(self, source: str) -> list[str]:
        """What an analysis reads whose alarms come from this source; all, where it is none of them."""
        return [f"complete_{name}" for name in ((source,) if source in self.sources else self.sources)]


def simulated(**fields: Any) -> dict[str, Node]:
    """Alarms of a simulated network; fields of the source `generate` that are None are left out."""
    given = {name: value for name, value in fields.items() if value is not None}
    return {"stations": {"type": "generate", "template": "stations", **given}}


def from_files(pattern: str) -> dict[str, Node]:
    """Alarms from files, a line each; a relative pattern begins here, wherever the pipeline file stands."""
    return {"stations": {"type": "files", "path": str(Path.cwd() / pattern)}}


def from_csv(pattern: str) -> dict[str, Node]:
    """The same from CSV files with a header, each row an alarm."""
    schema = ", ".join(f"{name} {kind}" for name, kind in zip(CSV_COLUMNS, _CSV_TYPES, strict=True))
    shape = {"format": "csv", "schema": schema, "timestamp_format": _TIME}
    return {"stations": {"type": "files", "path": str(Path.cwd() / pattern), **shape}}


def from_http(port: int) -> dict[str, Node]:
    return {"stations": {"type": "http", "port": port}}


def from_queues(queues: Sequence[str] = SOURCE_QUEUES) -> dict[str, Node]:
    """A source for each queue, and for each the analyses of its alarms: their windows are closed as far as
    this queue has come, however long the others are."""
    url = f"${{{RABBITMQ}}}"
    return {source_of(queue): {"type": "rabbitmq", "url": url, "queues": [queue]} for queue in queues}


def source_of(queue: str) -> str:
    """The name of the source that reads a queue."""
    return queue.removesuffix(".queue").replace(".", "_")


def embedded(
    sources: Mapping[str, Node],
    idle_after: str | None,
    *,
    postgres: bool = False,
    windows: Windows = Windows(),  # noqa: B008 - it is frozen
    is_csv: bool = False,
) -> Places:
    """No server is needed: results go to files and to SQLite."""
    return Places(
        sources,
        notifications={"type": "files", "path": "./out/notifications"},
        critical={"type": "files", "path": f"./out/{CRITICAL_QUEUE}"},
        storage=_storage(postgres),
        idle_after=idle_after,
        windows=windows,
        is_csv=is_csv,
    )


def with_rabbitmq(
    sources: Mapping[str, Node],
    idle_after: str | None,
    *,
    postgres: bool = False,
    windows: Windows = Windows(),  # noqa: B008 - it is frozen
) -> Places:
    """Results go to an exchange, critical alerts also to a queue of their own."""
    broker = {"type": "rabbitmq", "url": f"${{{RABBITMQ}}}"}
    return Places(
        sources,
        notifications={
            **broker,
            "exchange": RESULTS,
            "routing_key": "concat(datapointId, '.', alarmId)",
        },
        critical={**broker, "routing_key": f"'{CRITICAL_QUEUE}'"},
        storage=_storage(postgres),
        idle_after=idle_after,
        windows=windows,
    )


def analysis(places: Places, name: str = "alarms", **settings: Any) -> str:
    """The text of the pipeline that analyses alarms; with further settings, such as `spark`."""
    return _head(name, places.sources, places.anchors, **settings) + _shipped("analysis")


def routing(sources: Mapping[str, Node]) -> str:
    """The text of the pipeline that sends alarms to the queues of their sensors."""
    return _head("alarm_routing", sources, {"alarms": list(sources)}) + _shipped("routing")


def critical(cool_down: str, *, rabbitmq: bool) -> str:
    """The text of the pipeline in which critical alerts start analyses, in a directory of the home."""
    source: Node = {"type": "files", "path": f"../out/{CRITICAL_QUEUE}/*.jsonl"}
    if rabbitmq:
        source = {"type": "rabbitmq", "url": f"${{{RABBITMQ}}}", "queues": [CRITICAL_QUEUE]}
    sources = {"critical_alerts": source}
    anchors = {"alarms": list(sources), "cool_down": cool_down}
    return _head("alarms_critical", sources, anchors) + _shipped("critical")


def write(text: str, home: Path) -> Path:
    """Put a pipeline into a directory, which also holds its state and results; returns the file. A file that
    somebody else has written there is left alone, with a SignoffError."""
    file = home / "pipeline.yaml"
    if file.exists() and not file.read_text(encoding="utf-8").startswith(_FIRST_LINE):
        raise SignoffError(f"{file} exists and was not written by this command; give another --home")
    home.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def _head(name: str, sources: Mapping[str, Node], anchors: Mapping[str, Any], **settings: Any) -> str:
    lines = [_FIRST_LINE, f"name: {name}", "state: ./state"]
    lines += [f"{setting}: {json.dumps(value)}" for setting, value in settings.items()]
    lines += ["", "sources:"]
    lines += [f"  {source}: {json.dumps(fields)}" for source, fields in sources.items()]
    lines += [f"x-{anchor}: &{anchor} {json.dumps(value)}" for anchor, value in anchors.items()]
    return "\n".join(lines) + "\n"


def _shipped(part: Part) -> str:
    return resources.files("signoff_alarms").joinpath("pipelines", f"{part}.yaml").read_text(encoding="utf-8")


def _whole_seconds(duration: str, least: int = 1) -> int:
    """Raises SignoffError for what is no duration, or has a fraction of a second."""
    try:
        seconds = float(TypeAdapter(Duration).validate_python(duration))
    except ValidationError:
        raise SignoffError(f'"{duration}" is not a duration; write 90s, 10m or 1h') from None
    if seconds < least or seconds != int(seconds):
        raise SignoffError(f'"{duration}": a window has whole seconds')
    return int(seconds)


def _storage(postgres: bool) -> Node:
    if postgres:
        return {"type": "postgres", "url": f"${{{POSTGRES}}}"}
    return {"type": "sqlite", "path": "./out/results.db"}
