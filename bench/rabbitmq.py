"""RabbitMQ: from a queue to a file; through the sink into a queue; and how long until a message is settled.

    consume   a full queue, 150-byte messages: a bare pika client that consumes and acknowledges in ranges,
              against `signoff run` (rabbitmq, parse_json, filter, files) that acknowledges what is settled
    publish   into a queue: a bare pika client with a window of confirms, against the sink's writer
    latency   1,000 messages a second: from publishing a message to its acknowledgement, as seen on the wire

Each pair is measured side by side in one run, on a private broker, with quorum and classic queues. The
pipeline is warm when it is measured (its intake is stopped while the queue is filled again), and the first
quarter of the messages is not counted, for either.

    .venv/bin/python bench/rabbitmq.py [--messages 400000] [--seconds 60] [--only consume,publish,latency]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sqlite3
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pika
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.brokers import RabbitMQ, private_rabbitmq
from tests.servers import free_port, wait_until

from signoff.intake import read_status
from signoff.sinks.contract import BatchRef, Part
from signoff.sinks.rabbitmq.sink import ROUTING_KEY, RabbitmqSinkConfig

PIPELINE = """
name: bench
sources:
  incoming: {{type: rabbitmq, url: "{url}", queues: [{queue}]}}
transforms:
  parsed:
    type: parse_json
    input: incoming
    schema: "stationId BIGINT, dataPointId INT, alarmId INT, eventTime TIMESTAMP, value DOUBLE, valueThreshold
      DOUBLE, isActive BOOLEAN"
    timestamp_format: "yyyy-MM-dd HH:mm:ss z"
  chosen: {{type: filter, input: parsed, where: alarmId < 306}}
sinks:
  out: {{type: files, input: chosen, path: ./out, format: jsonl}}
"""
PREFETCH = 20_000
ACK_EVERY = 2_000
WINDOW = 5_000
PATIENCE_S = 600.0


def event(number: int) -> bytes:
    """About 150 bytes."""
    return (
        b'{"stationId":%d,"dataPointId":%d,"alarmId":%d,"eventTime":"2021-05-01 10:%02d:%02d UTC",'
        b'"value":%d.%03d,"valueThreshold":999999,"isActive":true}'
        % (number % 2000, 121 + number % 7, 301 + number % 10, number // 60 % 60, number % 60,
           number % 400, number % 1000)
    )  # fmt: skip


# -- consume


def consume(rabbitmq: RabbitMQ, kind: str, messages: int, rounds: int) -> dict[str, float]:
    queue = f"consume-{kind}"
    rabbitmq.declare_queue(queue, kind=kind)
    bare, signoff = [], []
    with running(PIPELINE.format(url=rabbitmq.url, queue=queue)) as home:
        fill(rabbitmq, queue, messages)
        wait_until(lambda: settled(home) >= messages, PATIENCE_S, "the warm-up")
        for _ in range(rounds):
            with paused(home):
                fill(rabbitmq, queue, messages)
            signoff.append(pipeline(home, messages))
            assert rabbitmq.count(queue) == 0, "not everything was acknowledged"
            with paused(home):
                rabbitmq.declare_queue("bare", kind=kind)
                fill(rabbitmq, "bare", messages)
                bare.append(bare_consumer(rabbitmq, "bare", messages))
            print(f"consume {kind:8} bare {bare[-1]:>9,.0f}/s  signoff {signoff[-1]:>9,.0f}/s", flush=True)
    rabbitmq.delete_queue(queue)
    return {"bare": max(bare), "signoff": max(signoff)}


def bare_consumer(rabbitmq: RabbitMQ, queue: str, messages: int) -> float:
    """As fast as pika consumes when it acknowledges in ranges; nothing is done with the messages."""
    connection = pika.BlockingConnection(pika.URLParameters(rabbitmq.url))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=PREFETCH)
    seen = 0
    began = done = 0.0

    def on_message(_: Any, method: Any, __: Any, ___: bytes) -> None:
        nonlocal seen, began, done
        seen += 1
        if seen == messages // 4:
            began = time.perf_counter()
        if seen % ACK_EVERY == 0 or seen == messages:
            channel.basic_ack(method.delivery_tag, multiple=True)
        if seen == messages:
            done = time.perf_counter()
            channel.stop_consuming()

    channel.basic_consume(queue, on_message)
    channel.start_consuming()
    connection.close()
    return (messages - messages // 4) / (done - began)


def fill(rabbitmq: RabbitMQ, queue: str, messages: int) -> None:
    """With ids that are never used again: the source knows what it has seen."""
    round_ = time.monotonic_ns()
    rabbitmq.publish((event(n) for n in range(messages)), queue, message_id=lambda n: f"{round_}-{n}")


def pipeline(home: Path, messages: int) -> float:
    """Messages settled per second, by the ledger's own times; acknowledging takes a few milliseconds more."""
    before = settled(home)
    wait_until(lambda: settled(home) >= before + messages, PATIENCE_S, "all messages settled")
    with sqlite3.connect(f"file:{home}/state/ledger.db?mode=ro", uri=True) as db:
        batches = db.execute('SELECT "end", settled_at FROM batches ORDER BY start').fetchall()
    first = next((end, at) for end, at in batches if end >= before + messages // 4)
    wait_until(lambda: told(home) >= before + messages, 10, "all messages acknowledged")
    return float((batches[-1][0] - first[0]) / (batches[-1][1] - first[1]))


def settled(home: Path) -> int:
    try:
        with sqlite3.connect(f"file:{home}/state/ledger.db?mode=ro", uri=True) as db:
            row = db.execute('SELECT max("end") FROM batches WHERE settled_at IS NOT NULL').fetchone()
    except sqlite3.OperationalError:  # not there yet
        return 0
    return int(row[0] or 0)


def told(home: Path) -> int:
    status = read_status(home / "state" / "intake" / "incoming")
    return status.settled_sequence if status else 0


@contextmanager
def paused(home: Path) -> Iterator[None]:
    """The intake stands still, so that a queue can be filled."""
    status = read_status(home / "state" / "intake" / "incoming")
    assert status is not None
    os.kill(status.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(status.pid, signal.SIGCONT)


@contextmanager
def running(text: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="signoff-bench-") as name:
        home = Path(name)
        (home / "bench.yaml").write_text(text)
        command = [str(Path(sys.executable).with_name("signoff")), "run", "bench.yaml", "--quiet"]
        run = subprocess.Popen(command, cwd=home)
        try:
            yield home
        finally:
            run.send_signal(signal.SIGTERM)
            run.wait(60)


# -- publish


def publish(rabbitmq: RabbitMQ, kind: str, messages: int, rounds: int) -> dict[str, float]:
    queue = f"publish-{kind}"
    rabbitmq.declare_queue(queue, kind=kind)
    bodies = [event(number) for number in range(messages)]
    bare, sink = [], []
    for _ in range(rounds):
        rabbitmq.purge(queue)
        began = time.perf_counter()
        rabbitmq.publish(bodies, queue)
        bare.append(messages / (time.perf_counter() - began))
        rabbitmq.purge(queue)
        sink.append(through_sink(rabbitmq, queue, bodies))
        assert rabbitmq.count(queue) == messages
        print(f"publish {kind:8} bare {bare[-1]:>9,.0f}/s  signoff {sink[-1]:>9,.0f}/s", flush=True)
    rabbitmq.delete_queue(queue)
    return {"bare": max(bare), "signoff": max(sink)}


def through_sink(rabbitmq: RabbitMQ, queue: str, bodies: list[bytes]) -> float:
    config = RabbitmqSinkConfig.model_validate(
        {"input": "x", "url": rabbitmq.url, "routing_key": f"'{queue}'", "body": "payload", "window": WINDOW}
    )
    writer = config.build(Path()).open(Part(BatchRef("incoming", 0, len(bodies)), 0, 0))
    began = time.perf_counter()
    for first in range(0, len(bodies), 20_000):
        part = bodies[first : first + 20_000]
        rows = pa.RecordBatch.from_arrays(
            [
                pa.array([f"incoming/{first + n}" for n in range(len(part))]),
                pa.array(part, pa.binary()),
                pa.array([queue] * len(part)),
            ],
            names=["event_id", "payload", ROUTING_KEY],
        )
        assert not writer.write(rows)
    writer.close()
    return len(bodies) / (time.perf_counter() - began)


# -- latency


class Wire:
    """Stands between the intake and the broker, and notes when acknowledgements pass."""

    def __init__(self, broker_port: int) -> None:
        self.port = free_port()
        self.acknowledged: list[float] = []
        """When each delivery was acknowledged, in the order of their tags."""
        self._open: dict[int, float] = {}
        self._next = 1
        self._broker_port = broker_port
        self._server = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            client, _ = self._server.accept()
            broker = socket.create_connection(("127.0.0.1", self._broker_port))
            for one, other, look in ((client, broker, True), (broker, client, False)):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._pass, args=(one, other, look), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, look: bool) -> None:
        rest = b""
        greeted = False
        while data := _received(source):
            target.sendall(data)
            if not look:
                continue
            rest += data
            if not greeted and len(rest) >= 8:
                rest, greeted = rest[8:], True  # the protocol's header, before the frames
            rest = self._frames(rest)
        target.close()

    def _frames(self, data: bytes) -> bytes:
        """Note the acknowledgements in whole frames; returns what is left of the last."""
        at = 0
        while len(data) - at >= 8:
            kind, _, size = struct.unpack_from(">BHI", data, at)
            if len(data) - at < size + 8:
                break
            if kind == 1 and data[at + 7 : at + 11] == b"\0\x3c\0\x50":  # basic.ack
                tag, multiple = struct.unpack_from(">QB", data, at + 11)
                self._ack(tag, bool(multiple), time.time())
            at += size + 8
        return data[at:]

    def _ack(self, tag: int, multiple: bool, now: float) -> None:
        for one in range(self._next if multiple else tag, tag + 1):
            self._open.setdefault(one, now)
        while self._next in self._open:
            self.acknowledged.append(self._open.pop(self._next))
            self._next += 1


def _received(source: socket.socket) -> bytes:
    try:
        return source.recv(262_144)
    except OSError:  # the other end is gone
        return b""


def latency(rabbitmq: RabbitMQ, seconds: int) -> dict[str, float]:
    """Milliseconds from publishing to acknowledging, at 1,000 messages a second, then silence."""
    rabbitmq.declare_queue("latency")
    wire = Wire(rabbitmq.port)
    url = rabbitmq.url.replace(f":{rabbitmq.port}", f":{wire.port}")
    sent: list[float] = []
    with running(PIPELINE.format(url=url, queue="latency")):
        sent += [time.time()] * rabbitmq.publish(map(event, range(5000)), "latency")
        wait_until(lambda: len(wire.acknowledged) == len(sent), 120, "the start")
        with rabbitmq.channel() as channel:
            warm = 20 * 1000
            began = time.time()
            for number in range(warm + seconds * 1000):
                due = began + number / 1000
                if due > time.time():
                    channel.connection.process_data_events(max(due - time.time(), 0))
                channel.basic_publish(
                    "", "latency", event(number), pika.BasicProperties(message_id=f"{number}")
                )
                sent.append(time.time())
        wait_until(lambda: len(wire.acknowledged) >= len(sent), 60, "the last acknowledgements")
    took = [1000 * (done - was) for was, done in zip(sent, wire.acknowledged, strict=True)]
    steady = sorted(took[5000 + warm :])
    result = {
        "median_ms": statistics.median(steady),
        "p99_ms": steady[int(len(steady) * 0.99)],
        "max_ms": steady[-1],
        "last_before_silence_ms": max(took[-100:]),
    }
    print("latency " + " ".join(f"{key}={value:,.0f}" for key, value in result.items()), flush=True)
    return {key: round(value, 1) for key, value in result.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--messages", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--only", default="consume,publish,latency")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    only = given.only.split(",")
    result: dict[str, Any] = {"messages": given.messages}
    with private_rabbitmq() as rabbitmq:
        for name, measure, messages in (
            ("consume", consume, given.messages),
            ("publish", publish, given.messages // 2),
        ):
            for kind in ("quorum", "classic") if name in only else ():
                rates = measure(rabbitmq, kind, messages, given.rounds)
                ratio = round(rates["signoff"] / rates["bare"], 3)
                result[f"{name} {kind}"] = {**{k: round(v) for k, v in rates.items()}, "ratio": ratio}
        if "latency" in only:
            result["latency"] = latency(rabbitmq, given.seconds)
    for name, figures in result.items():
        if isinstance(figures, dict) and "ratio" in figures:
            print(f"{name:18} signoff / bare {figures['ratio']:6.2f}")
    print(json.dumps(result))
    if given.json:
        given.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
