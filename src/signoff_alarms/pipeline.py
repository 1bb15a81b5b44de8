"""The pipelines of the application, as files: where alarms come from, what is done, where results go.

What is done is the same everywhere and stands in `pipelines/*.yaml`, which refers to the places by anchors:
`*alarms`, the sources; `*archive`, `*notifications`, `*critical` and `*storage`, the kinds of sinks. A file
that is written here names the places in its first lines. No address of a server is in it, which may hold a
password: those are in the environment, under the names below.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from signoff.errors import SignoffError
from signoff_alarms.topology import CRITICAL_QUEUE, OTHER_QUEUE, QUEUES, RESULTS

RABBITMQ, POSTGRES = "SIGNOFF_ALARMS_RABBITMQ", "SIGNOFF_ALARMS_POSTGRES"
"""Environment variables with the addresses of the servers."""

Node = Mapping[str, Any]
Part = Literal["analysis", "routing"]

_FIRST_LINE = "# Written by python -m signoff_alarms; every command of signoff takes this file."


@dataclass(frozen=True)
class Places:
    """Where alarms come from, and where the results go."""

    sources: Mapping[str, Node]
    notifications: Node
    critical: Node
    storage: Node
    idle_after: str = "1m"
    """How long alarms must stay away for the last windows to be closed."""

    @property
    def anchors(self) -> dict[str, Any]:
        return {
            "alarms": list(self.sources),
            "archive": {"type": "files"},
            "notifications": self.notifications,
            "critical": self.critical,
            "storage": self.storage,
            "idle": self.idle_after,
        }


def simulated(**fields: Any) -> dict[str, Node]:
    """Alarms of a simulated network; fields of the source `generate` that are None are left out."""
    given = {name: value for name, value in fields.items() if value is not None}
    return {"stations": {"type": "generate", "template": "stations", **given}}


def from_files(pattern: str) -> dict[str, Node]:
    """Alarms from files, a line each; a relative pattern begins here, wherever the pipeline file stands."""
    return {"stations": {"type": "files", "path": str(Path.cwd() / pattern)}}


def from_http(port: int) -> dict[str, Node]:
    return {"stations": {"type": "http", "port": port}}


def from_queues() -> dict[str, Node]:
    """A source for each queue: windows are then closed as far as the slowest of them has come. One source for
    all would mix what is hours apart, and take for late what only waited in a longer queue."""
    url = f"${{{RABBITMQ}}}"
    return {
        queue.removesuffix(".queue").replace(".", "_"): {"type": "rabbitmq", "url": url, "queues": [queue]}
        for queue in (*QUEUES.values(), OTHER_QUEUE)
    }


def embedded(sources: Mapping[str, Node], idle_after: str, *, postgres: bool = False) -> Places:
    """No server is needed: results go to files and to SQLite."""
    return Places(
        sources,
        notifications={"type": "files", "path": "./out/notifications"},
        critical={"type": "files", "path": f"./out/{CRITICAL_QUEUE}"},
        storage=_storage(postgres),
        idle_after=idle_after,
    )


def with_rabbitmq(sources: Mapping[str, Node], idle_after: str, *, postgres: bool = False) -> Places:
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
    )


def analysis(places: Places, name: str = "alarms", **settings: Any) -> str:
    """The text of the pipeline that analyses alarms; with further settings, such as `spark`."""
    return _head(name, places.sources, places.anchors, **settings) + _shipped("analysis")


def routing(sources: Mapping[str, Node]) -> str:
    """The text of the pipeline that sends alarms to the queues of their sensors."""
    return _head("alarm_routing", sources, {"alarms": list(sources)}) + _shipped("routing")


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


def _storage(postgres: bool) -> Node:
    if postgres:
        return {"type": "postgres", "url": f"${{{POSTGRES}}}"}
    return {"type": "sqlite", "path": "./out/results.db"}
