"""A private RabbitMQ for tests: its own ports, its own data, gone afterwards.

with private_rabbitmq() as rabbitmq:
    rabbitmq.declare_queue("alarms")                  # quorum; kind="classic" for the other kind
    rabbitmq.publish([b"one", b"two"], "alarms")      # confirmed when this returns
    rabbitmq.kill(); rabbitmq.start()                 # as a power cut would; the data stays
    assert rabbitmq.count("alarms") == 2
    assert [message.body for message in rabbitmq.take("alarms")] == [b"one", b"two"]
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pika
import psutil

from tests.servers import PATIENCE_S, free_port, wait_until

PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
"""Not the script in /usr/sbin, which changes to another user."""
USER, PASSWORD = "tester", "correct-horse"
_UNSURE_S = 3.0
"""What is younger does not always outlive SIGKILL: the broker writes declarations to disk a little late. A
classic queue is gone then, a quorum queue rejects everything for ever (github.com/rabbitmq/ra/pull/443)."""
_KEEPER = 'read _; for pid in $(cat "$0/pids"); do kill -s KILL -- "-$pid"; done; rm -rf "$0"'
"""Waits until its input ends, which it does however this process ends, and leaves nothing behind."""
_GREETING = b"AMQP\0\0\x09\x01"
_FILES = {
    "RABBITMQ_CONFIG_FILE": "rabbitmq.conf",
    "RABBITMQ_ADVANCED_CONFIG_FILE": "advanced.config",
    "RABBITMQ_CONF_ENV_FILE": "env.conf",
    "RABBITMQ_ENABLED_PLUGINS_FILE": "enabled_plugins",
    "RABBITMQ_MNESIA_BASE": "data",
    "RABBITMQ_LOG_BASE": "logs",
    "RABBITMQ_GENERATED_CONFIG_DIR": "generated",
    "RABBITMQ_FEATURE_FLAGS_FILE": "feature_flags",
    "RABBITMQ_PID_FILE": "pid",
}


def rabbitmq_is_installed() -> bool:
    return PROGRAM.exists() and shutil.which("epmd") is not None


@dataclass(frozen=True)
class Message:
    """One message as a consumer gets it."""

    body: bytes
    properties: pika.BasicProperties
    routing_key: str
    exchange: str
    redelivered: bool

    @property
    def id(self) -> str:
        return str(self.properties.message_id)


class RabbitMQ:
    """A broker of this process alone. `start` again after `kill` or `stop`: the data stays."""

    def __init__(
        self, directory: Path, *, consumer_timeout_ms: int | None = None, channel_tick_ms: int = 1000
    ) -> None:
        self.port = free_port()
        self.url = f"amqp://{USER}:{PASSWORD}@127.0.0.1:{self.port}/%2F"
        self.tls_url = f"amqps://{USER}:{PASSWORD}@localhost:{(tls_port := free_port())}/%2F"
        self._tls_port = tls_port
        self.ca_file = directory / "certificate.pem"
        """Signs for `localhost`, and for nothing else; itself its authority."""
        self._directory = directory
        self._epmd_port, self._dist_port = free_port(), free_port()
        self._declared_at = -_UNSURE_S
        self._write("pids", "")
        self._keeper = subprocess.Popen(
            ["sh", "-c", _KEEPER, str(directory)],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._broker: subprocess.Popen[bytes] | None = None
        self._epmd: subprocess.Popen[bytes] | None = None
        self._configure(tls_port, consumer_timeout_ms, channel_tick_ms)

    # The process

    def start(self) -> None:
        """Start if it is not running, and wait until the broker answers (about 5 s)."""
        if self._broker is not None:
            return
        if self._epmd is None:
            # Of our own: the one a broker starts by itself outlives it.
            command = ["epmd", "-port", str(self._epmd_port), "-address", "127.0.0.1"]
            self._epmd = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
            )
            self._keep()
            wait_until(lambda: self._listens(self._epmd_port), what="an answer of epmd")
        with (self._directory / "output").open("ab") as output:
            self._broker = subprocess.Popen(
                [str(PROGRAM)], env=self._environment(), stdout=output, stderr=output, start_new_session=True
            )
        self._keep()
        wait_until(self._answers, 2 * PATIENCE_S, "an answer of RabbitMQ")

    def kill(self) -> None:
        """SIGKILL, as a power cut would, once what was declared is old enough to outlive it."""
        if self._broker is None:
            return
        self.wait_until_queues_are_durable()
        family = self._family()
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._broker.wait(PATIENCE_S)
        psutil.wait_procs(family, timeout=PATIENCE_S)
        self._broker = None
        self._keep()

    def wait_until_queues_are_durable(self) -> None:
        """For a test that wants `kill` to come at once."""
        time.sleep(max(0.0, self._declared_at + _UNSURE_S - time.monotonic()))

    def restart(self) -> None:
        """`kill` and `start` on the same data."""
        self.kill()
        self.start()

    def stop(self) -> None:
        """Shut down in an orderly way: clients are told."""
        if self._broker is None:
            return
        family = self._family()
        self._broker.send_signal(signal.SIGTERM)
        self._broker.wait(PATIENCE_S)
        psutil.wait_procs(family, timeout=PATIENCE_S)
        self._broker = None
        self._keep()

    def pause(self) -> None:
        """Stop answering, with all connections open, until `resume`."""
        for process in self._family():
            process.suspend()

    def resume(self) -> None:
        for process in self._family():
            process.resume()

    def control(self, *arguments: str) -> None:
        """`rabbitmqctl`; takes some seconds."""
        program = PROGRAM.with_name("rabbitmqctl")
        subprocess.run([str(program), *arguments], env=self._environment(), check=True, capture_output=True)

    def close(self) -> None:
        """End everything that was started, epmd too."""
        self._declared_at = -_UNSURE_S
        self.kill()
        if self._epmd is not None:
            self._epmd.kill()
            self._epmd.wait(PATIENCE_S)
            self._epmd = None
        self._keep()
        self._keeper.communicate()

    @property
    def log(self) -> str:
        """What the broker wrote to its log and its output."""
        files = [*sorted((self._directory / "logs").glob("*.log")), self._directory / "output"]
        return "".join(file.read_text(errors="replace") for file in files if file.exists())

    # What a test does with it

    @contextmanager
    def channel(self) -> Iterator[Any]:
        """A pika channel (blocking) with confirms off, on a connection of its own."""
        connection = pika.BlockingConnection(pika.URLParameters(self.url))
        try:
            yield connection.channel()
        finally:
            with suppress(pika.exceptions.AMQPError):
                connection.close()

    def declare_queue(
        self,
        name: str,
        kind: Literal["quorum", "classic"] = "quorum",
        *,
        durable: bool = True,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """Make the queue anew, empty."""
        with self.channel() as channel:
            channel.queue_delete(name)
            channel.queue_declare(
                name, durable=durable, arguments={"x-queue-type": kind, **(arguments or {})}
            )
        self._declared_at = time.monotonic()

    def declare_exchange(self, name: str, kind: str = "direct", *, durable: bool = True) -> None:
        """Make the exchange anew, without bindings."""
        with self.channel() as channel:
            channel.exchange_delete(name)
            channel.exchange_declare(name, kind, durable=durable)
        self._declared_at = time.monotonic()

    def bind(self, queue: str, exchange: str, *routing_keys: str) -> None:
        with self.channel() as channel:
            for key in routing_keys:
                channel.queue_bind(queue, exchange, key)
        self._declared_at = time.monotonic()

    def delete_queue(self, name: str) -> None:
        with self.channel() as channel:
            channel.queue_delete(name)

    def delete_exchange(self, name: str) -> None:
        with self.channel() as channel:
            channel.exchange_delete(name)

    def publish(
        self,
        bodies: Iterable[bytes],
        routing_key: str | Callable[[int], str],
        *,
        exchange: str = "",
        message_id: Callable[[int], str] | None = lambda number: f"m{number}",
        persistent: bool = True,
        **properties: Any,
    ) -> int:
        """Publish all, as fast as pika can, and return how many when the broker has confirmed each.

        Routing key and message id may depend on the message's number, which counts from 0.
        """
        fixed = {"delivery_mode": 2 if persistent else 1, **properties}
        unconfirmed: set[int] = set()
        nacked: set[int] = set()
        lowest = 1

        def confirmed(frame: Any) -> None:
            nonlocal lowest
            tag = frame.method.delivery_tag
            tags = {tag}
            if frame.method.multiple:
                tags, lowest = unconfirmed.intersection(range(lowest, tag + 1)), tag + 1
            unconfirmed.difference_update(tags)
            if isinstance(frame.method, pika.spec.Basic.Nack):
                nacked.update(tags)

        with self.channel() as channel:
            # A blocking channel waits for each confirm; the channel below it does not.
            inner = channel._impl
            inner.confirm_delivery(confirmed)
            sent = 0
            for number, body in enumerate(bodies):
                made = pika.BasicProperties(message_id=message_id and message_id(number), **fixed)
                key = routing_key if isinstance(routing_key, str) else routing_key(number)
                inner.basic_publish(exchange, key, body, made)
                sent += 1
                unconfirmed.add(sent)
                while len(unconfirmed) >= 5_000:
                    channel.connection.process_data_events(0.01)
                if sent % 500 == 0:
                    channel.connection.process_data_events(0)
            wait_until(lambda: _pump(channel) or not unconfirmed, what="the last confirms")
        if nacked:
            raise AssertionError(f"RabbitMQ did not take {len(nacked)} of {sent} messages")
        return sent

    def count(self, queue: str) -> int:
        """Messages that wait in the queue; not those a consumer has and did not acknowledge yet."""
        with self.channel() as channel:
            return int(channel.queue_declare(queue, passive=True).method.message_count)

    def consumers(self, queue: str) -> int:
        """How many consumers the queue has; what one of them leaves is back in the queue when it is gone."""
        with self.channel() as channel:
            return int(channel.queue_declare(queue, passive=True).method.consumer_count)

    def wait_for(self, queue: str, messages: int, timeout_s: float = PATIENCE_S) -> None:
        """Wait until so many messages wait in the queue."""
        counts: list[int] = []

        def there() -> bool:
            counts.append(self.count(queue))
            return counts[-1] == messages

        try:
            wait_until(there, timeout_s)
        except AssertionError:
            raise AssertionError(f"not {messages} but {counts[-1]} messages wait in {queue}") from None

    def purge(self, queue: str) -> None:
        with self.channel() as channel:
            channel.queue_purge(queue)

    def take(self, queue: str) -> list[Message]:
        """Take all messages that wait in the queue, acknowledging them."""
        taken: list[Message] = []
        with self.channel() as channel:
            there = channel.queue_declare(queue, passive=True).method.message_count
            channel.basic_qos(prefetch_count=10_000)
            last = 0
            for method, properties, body in channel.consume(queue, inactivity_timeout=0.3):
                if method is None:  # a pause; the end only if nothing waits, and what was there has come
                    ready = channel.queue_declare(queue, passive=True).method.message_count
                    if not ready and not channel.get_waiting_message_count() and len(taken) >= there:
                        break
                    continue
                last = method.delivery_tag
                taken.append(
                    Message(body, properties, method.routing_key, method.exchange, method.redelivered)
                )
                if last % 5_000 == 0:
                    channel.basic_ack(last, multiple=True)
            if last % 5_000:
                channel.basic_ack(last, multiple=True)
            channel.cancel()
        return taken

    # Below

    def _keep(self) -> None:
        """Tell the keeper what runs."""
        running = [str(one.pid) for one in (self._broker, self._epmd) if one is not None]
        self._write("pids", " ".join(running))

    def _family(self) -> list[psutil.Process]:
        if self._broker is None:
            return []
        try:
            broker = psutil.Process(self._broker.pid)
            return [broker, *broker.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def _configure(self, tls_port: int, consumer_timeout_ms: int | None, channel_tick_ms: int) -> None:
        key = self._directory / "key.pem"
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]
        command += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(self.ca_file)]
        subprocess.run(command, check=True, capture_output=True)
        lines = [
            f"listeners.tcp.1 = 127.0.0.1:{self.port}",
            f"listeners.ssl.1 = 127.0.0.1:{tls_port}",
            f"ssl_options.certfile = {self.ca_file}",
            f"ssl_options.keyfile = {key}",
            "ssl_options.verify = verify_none",
            f"default_user = {USER}",
            f"default_pass = {PASSWORD}",
            "disk_free_limit.absolute = 50MB",
            "max_message_size = 16777216",
        ]
        if consumer_timeout_ms is not None:
            lines.append(f"consumer_timeout = {consumer_timeout_ms}")
        self._write("rabbitmq.conf", "\n".join(lines) + "\n")
        # The consumer timeout is looked at with every tick, by default once in 60 s.
        self._write("advanced.config", f"[{{rabbit, [{{channel_tick_interval, {channel_tick_ms}}}]}}].\n")
        self._write("env.conf", "")
        self._write("enabled_plugins", "[].\n")

    def _write(self, name: str, text: str) -> None:
        (self._directory / name).write_text(text)

    def _environment(self) -> dict[str, str]:
        own = {variable: str(self._directory / name) for variable, name in _FILES.items()}
        return {
            **os.environ,
            **own,
            "HOME": str(self._directory),
            "RABBITMQ_NODENAME": f"t{self.port}@localhost",
            "RABBITMQ_DIST_PORT": str(self._dist_port),
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        }

    @staticmethod
    def _listens(port: int) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        return False

    def _answers(self) -> bool:
        if self._broker is not None and self._broker.poll() is not None:
            raise AssertionError(f"RabbitMQ ended with code {self._broker.returncode}: {self.log[-2000:]}")
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1) as probe:
            probe.settimeout(2)
            probe.sendall(_GREETING)
            return bool(probe.recv(8)) and self._listens(self._tls_port)
        return False


@contextmanager
def private_rabbitmq(
    *, consumer_timeout_ms: int | None = None, channel_tick_ms: int = 1000
) -> Iterator[RabbitMQ]:
    """A running RabbitMQ that is gone afterwards. Raises FileNotFoundError where it is not installed."""
    if not rabbitmq_is_installed():
        raise FileNotFoundError("RabbitMQ is not installed; on Debian: apt-get install rabbitmq-server")
    directory = Path(tempfile.mkdtemp(prefix="signoff-rabbitmq-"))
    try:
        broker = RabbitMQ(directory, consumer_timeout_ms=consumer_timeout_ms, channel_tick_ms=channel_tick_ms)
        try:
            broker.start()
            yield broker
        finally:
            broker.close()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _pump(channel: Any) -> bool:
    """Let a connection read what has arrived; false, so that it may stand in front of a condition."""
    channel.connection.process_data_events(0.01)
    return False
