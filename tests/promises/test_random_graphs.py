"""Random pipelines on Spark, against a model of a few lines: what must have become of every event, and where.

`SIGNOFF_GRAPHS=48` tries more of them than the six that are run by default.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.promises.product import FILES, LATER, PARSE, SOON, Inline, books
from tests.servers import WebhookServer

pytestmark = pytest.mark.spark

GRAPHS = int(os.environ.get("SIGNOFF_GRAPHS", "6"))
EVENTS = 30
RANK = ("dropped", "delivered", "dead_lettered", "refused")
BY_POLICY = {"dead_letter": "dead_lettered", "refuse": "refused", "drop": "dropped"}
Row = dict[str, Any]
"""`id`, `n` and `parts`, or what an unfold made of them."""
Rows = Callable[[Row], list[Row]]


@dataclass
class Sink:
    name: str
    port: str
    rows: Rows
    """What comes to it of an event."""
    policy: str
    refuses: int
    """It never takes rows whose n this divides; 0: it takes all."""
    down_at_first: bool
    buffer: dict[str, Any] | None

    @property
    def signs(self) -> bool:
        """Its buffer does: what becomes of its rows is not what becomes of their events."""
        return bool(self.buffer and self.buffer.get("acknowledgements"))


@dataclass
class World:
    """A pipeline, and what it does to an event."""

    seed: int
    transforms: dict[str, Any] = field(default_factory=lambda: {"parsed": PARSE})
    ends: dict[str, Callable[[Row], list[str]]] = field(default_factory=dict)
    """By step: how rows of an event that come to it end there, other than by being left out."""
    sinks: list[Sink] = field(default_factory=list)

    def fate(self, event: Row) -> str:
        """The worst of its rows is what an event counts as."""
        found = ["dropped", *(end for ends in self.ends.values() for end in ends(event))]
        for sink in self.sinks:
            refused = "delivered" if sink.signs else BY_POLICY[sink.policy]
            found += ["delivered" if self.takes(sink, row) else refused for row in sink.rows(event)]
        return max(found, key=RANK.index)

    @staticmethod
    def takes(sink: Sink, row: Row) -> bool:
        return not sink.refuses or row["n"] % sink.refuses != 0


def random_world(seed: int) -> World:
    rng, world = random.Random(seed), World(seed)
    ports: dict[str, Rows] = {"parsed": lambda event: [event]}
    for number in range(rng.randint(2, 4)):
        given = rng.choice(list(ports)[-3:])
        kinds = ["filter", "route", "frame", "frame", "unlucky", "shaky"] + (
            ["unfold"] if "unfolded" not in given else []
        )
        _add_step(world, rng.choice(kinds), f"step{number}", given, ports, rng)
    for number in range(rng.randint(1, 3)):
        port = rng.choice(list(ports)[-4:])
        buffer = rng.choice([None, None, {"type": "disk"}, {"type": "disk", "acknowledgements": True}])
        signs = bool(buffer and buffer.get("acknowledgements"))
        policy = rng.choice(["dead_letter", "drop"] if signs else ["dead_letter", "refuse", "drop"])
        refuses, down = rng.choice([0, 0, 4, 5]), rng.random() < 0.4
        world.sinks.append(Sink(f"sink{number}", port, ports[port], policy, refuses, down, buffer))
    return _pruned(world)


def _add_step(
    world: World, kind: str, name: str, given: str, ports: dict[str, Rows], rng: random.Random
) -> None:
    before = ports[given]
    if kind == "filter":
        by = rng.choice([2, 3, 4])
        world.transforms[name] = {"type": "filter", "input": given, "where": f"n % {by} != 1"}
        ports[name] = lambda event: [row for row in before(event) if row["n"] % by != 1]
    elif kind == "route":
        routes = {"even": "n % 2 = 0", "odd": "n % 2 = 1"}
        world.transforms[name] = {"type": "route", "input": given, "routes": routes}
        for rest, output in enumerate(routes):
            ports[f"{name}.{output}"] = lambda event, rest=rest: [
                row for row in before(event) if row["n"] % 2 == rest
            ]
    elif kind == "frame":
        function = "tests.promises.functions:without_twos"
        world.transforms[name] = {"type": "python", "input": given, "function": function}
        ports[name] = lambda event: [row for row in before(event) if row["n"] % 5 != 2]
    elif kind == "unfold":
        name = f"{name}_unfolded"
        world.transforms[name] = {"type": "unfold", "input": given, "column": "parts", "as": "part"}
        ports[name] = lambda event: [
            {"id": f"{row['id']}/{place}", "n": row["n"], "part": part}
            for row in before(event)
            for place, part in enumerate(row["parts"])
        ]
    else:
        columns = "n INT, part INT" if "unfolded" in given else "n INT, parts ARRAY<INT>"
        step = {"type": "python", "mode": "rows", "function": f"tests.promises.functions:{kind}"}
        world.transforms[name] = {"input": given, **step, "schema": columns, "retry": SOON}
        ports[name] = before  # a step that fails for now makes no difference in the end
    if kind == "unlucky":
        ports[name] = lambda event: [row for row in before(event) if row["n"] % 7 != 3]
        world.ends[name] = lambda event: ["dead_lettered" for row in before(event) if row["n"] % 7 == 3]
    if "unfolded" in given and "unfolded" not in name:  # the name says what the rows look like
        for port in [port for port in ports if port.partition(".")[0] == name]:
            output = port.partition(".")[2]
            ports[f"{name}_unfolded" + (f".{output}" if output else "")] = ports.pop(port)
        world.transforms[f"{name}_unfolded"] = world.transforms.pop(name)
        if name in world.ends:
            world.ends[f"{name}_unfolded"] = world.ends.pop(name)


def _pruned(world: World) -> World:
    """Without the steps that nobody reads."""
    read = {sink.port.partition(".")[0] for sink in world.sinks}
    for name in reversed(list(world.transforms)):
        if name in read:
            read.add(world.transforms[name]["input"].partition(".")[0])
        else:
            del world.transforms[name]
            world.ends.pop(name, None)
    return world


@pytest.mark.parametrize("seed", range(GRAPHS))
def test_every_event_ends_as_the_pipeline_says(inline: Callable[..., Inline], seed: int) -> None:
    world = random_world(seed)
    events: list[Row] = [{"id": f"incoming/{n}", "n": n, "parts": list(range(n % 4))} for n in range(EVENTS)]
    servers = {sink.name: WebhookServer() for sink in world.sinks}
    product = inline(
        sources={"incoming": FILES | {"on_refuse": "move"}},
        transforms=world.transforms,
        sinks={sink.name: _sink(sink, servers[sink.name]) for sink in world.sinks},
    )
    product.put("a.jsonl", [{"n": event["n"], "parts": event["parts"]} for event in events])
    try:
        rules = [_behave(sink, servers[sink.name], events) for sink in world.sinks]
        if any(rules):
            running = product.start(drain_s=1.0)
            running.wait_for(lambda: "failed on batch" in running.output)
            for sink, rule in zip(world.sinks, rules, strict=True):
                if rule is None:
                    due = sum(world.takes(sink, row) for event in events for row in sink.rows(event))
                    running.wait_for(lambda s=sink, n=due: product.status()["sinks"][s.name]["rows"] == n)
            running.terminate()
        for rule in rules:
            if rule is not None:
                rule.stop()
        product.run_once()
        _compare(world, product, events, servers)
    finally:
        for server in servers.values():
            server.__exit__()


def _sink(sink: Sink, server: WebhookServer) -> dict[str, Any]:
    made = {"type": "http", "input": sink.port, "url": server.url, "retry": LATER, "on_failure": sink.policy}
    return made | ({"buffer": sink.buffer} if sink.buffer else {})


def _behave(sink: Sink, server: WebhookServer, events: list[Row]) -> Any:
    """Make its server answer as the world says; returns what makes it fail for now, if anything does."""
    server.up()
    rows = [row for event in events for row in sink.rows(event)]
    never = {row["id"] for row in rows if not World.takes(sink, row)}
    server.answer_rows(400, never)
    return server.answer(503) if sink.down_at_first and rows else None


def _compare(world: World, product: Inline, events: list[Row], servers: dict[str, WebhookServer]) -> None:
    fates = Counter(world.fate(event) for event in events)
    assert product.account() == books(**fates), f"seed {world.seed}"
    for sink in world.sinks:
        wanted = sorted(row["id"] for event in events for row in sink.rows(event) if world.takes(sink, row))
        got = servers[sink.name].accepted_ids
        assert sorted(set(got)) == wanted, f"seed {world.seed}, {sink.name}"
        assert len(got) == len(set(got)), "and nothing twice, for nobody was killed"
