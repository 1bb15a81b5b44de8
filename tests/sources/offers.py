"""For each source: a way to put events in front of it, the same for all, for the conformance tests."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import ClassVar

import httpx
import orjson
import pyarrow as pa

from signoff.link.handover import HandoverSink, LinkPlace
from signoff.link.notes import LinkNotes
from signoff.link.source import PipelineConfig
from signoff.pipeline.model import SourceConfig
from signoff.sinks.contract import BatchRef, Part
from signoff.sources.contract import Resume, Source
from signoff.sources.files.config import FilesConfig
from signoff.sources.generate import GenerateConfig
from signoff.sources.http.source import ADDRESS_FILE, HttpConfig
from signoff.sources.nats.config import NatsConfig
from signoff.sources.rabbitmq.config import RabbitmqConfig
from signoff.sources.redis.config import RedisConfig
from signoff.sources.stdin import StdinConfig, StdinSource
from signoff.testing.conformance.sources import SourceOffer, wait_until
from tests.brokers import RabbitMQ
from tests.nats_server import NatsServer
from tests.redis_server import RedisServer


class FilesOffer(SourceOffer):
    answers_together: ClassVar[bool] = True

    def config(self) -> SourceConfig:
        return FilesConfig(
            path="in/*.jsonl", on_acknowledge="move", on_refuse="move", settle_ms=0, poll_ms=10
        )

    def got_back(self) -> int:
        files = (self.base / "in" / "refused").glob("*.jsonl")
        return sum(len(file.read_bytes().splitlines()) for file in files)

    def offer(self, payloads: list[bytes]) -> None:
        directory = self.base / "in"
        directory.mkdir(exist_ok=True)
        if payloads:
            (directory / f"{self.offered:06d}.jsonl").write_bytes(b"\n".join(payloads) + b"\n")


class GenerateOffer(SourceOffer):
    def config(self) -> SourceConfig:
        return GenerateConfig(template="sequence", count=self.offered)

    def offer(self, payloads: list[bytes]) -> None:
        """The count says it all."""


class StdinOffer(SourceOffer):
    reads_again: ClassVar[bool] = False
    in_a_process: ClassVar[bool] = False

    def __init__(self, base: Path) -> None:
        super().__init__(base)
        self.reading, self.writing = os.pipe()

    def config(self) -> SourceConfig:
        return StdinConfig()

    def build(self) -> Source:
        return StdinSource(StdinConfig(), self.reading)

    def offer(self, payloads: list[bytes]) -> None:
        os.write(self.writing, b"".join(payload + b"\n" for payload in payloads))

    def finish(self) -> None:
        os.close(self.reading)
        os.close(self.writing)


class HttpOffer(SourceOffer):
    reads_again: ClassVar[bool] = False
    answers_together: ClassVar[bool] = True
    in_a_process: ClassVar[bool] = False
    """It waits for the inbox of its source."""

    def __init__(self, base: Path) -> None:
        super().__init__(base)
        self.threads: list[threading.Thread] = []
        self.responses: list[httpx.Response] = []
        self.early: list[list[bytes]] = []
        self.source: Source | None = None

    def config(self) -> SourceConfig:
        return HttpConfig(port=0)

    def open(self, resume: Resume | None = None, *, once: bool = False) -> Source:
        source = self.source = super().open(resume, once=once)
        for payloads in self.early:
            self.offer(payloads)
        self.early = []
        return source

    def offer(self, payloads: list[bytes]) -> None:
        if self.source is None:
            self.early.append(payloads)
            return
        if not payloads:
            return
        before = self._pending()
        self.threads.append(threading.Thread(target=self._post, args=(payloads,), daemon=True))
        self.threads[-1].start()
        wait_until(lambda: self._pending() == before + len(payloads))  # requests stay in order

    def _pending(self) -> int:
        return self.source._inbox.pending  # type: ignore[attr-defined,no-any-return]

    def _post(self, payloads: list[bytes]) -> None:
        address = orjson.loads((self.base / "own" / ADDRESS_FILE).read_bytes())["address"]
        headers = {"content-type": "application/x-ndjson"}
        self.responses.append(httpx.post(address, content=b"\n".join(payloads), headers=headers, timeout=30))

    def got_back(self) -> int:
        return sum(response.json()["events"] for response in self.responses if response.status_code == 503)

    def closed(self) -> None:
        self.source = None

    def finish(self) -> None:
        for thread in self.threads:
            thread.join(10)


class RabbitmqOffer(SourceOffer):
    reads_again: ClassVar[bool] = False
    """Without its log, it does not recognise what is in there and gives that again as well."""
    broker: RabbitMQ
    """Set by whoever has one."""

    def __init__(self, base: Path) -> None:
        super().__init__(base)
        self.broker.declare_queue("offered")

    def config(self) -> SourceConfig:
        return RabbitmqConfig.model_validate({"url": self.broker.url, "queues": "offered"})

    def offer(self, payloads: list[bytes]) -> None:
        self.broker.publish(payloads, "offered")

    def got_back(self) -> int:
        return self.broker.count("offered")


class NatsOffer(SourceOffer):
    reads_again: ClassVar[bool] = False
    """Without its log, it does not recognise what is in there and gives that again as well."""

    def __init__(self, base: Path) -> None:
        super().__init__(base)
        self.server = NatsServer(base / "nats")
        self.server.start()
        self.server.make_stream("OFFERED", "offered.>")

    def config(self) -> SourceConfig:
        fields = {"url": self.server.url, "stream": "OFFERED", "consumer": "tests", "nak_delay": "60s"}
        return NatsConfig.model_validate({**fields, "ack_wait": "2s"})

    def offer(self, payloads: list[bytes]) -> None:
        self.server.publish(payloads, "offered.new")

    def got_back(self) -> int:
        found = self.server.consumer("OFFERED", "tests")
        return (found.num_ack_pending or 0) + (found.num_pending or 0)

    def finish(self) -> None:
        self.server.kill()


class RedisOffer(SourceOffer):
    def __init__(self, base: Path) -> None:
        super().__init__(base)
        self.server = RedisServer(base / "redis")
        self.server.start()

    def config(self) -> SourceConfig:
        fields = {"url": self.server.url, "stream": "offered", "group": "tests", "field": "payload"}
        return RedisConfig.model_validate(fields)

    def offer(self, payloads: list[bytes]) -> None:
        self.server.add("offered", *payloads)

    def got_back(self) -> int:
        return self.server.pending("offered", "tests")

    def finish(self) -> None:
        self.server.kill()


class PipelineOffer(SourceOffer):
    """A link, and in front of it what the other pipeline does: hand on batches."""

    def __init__(self, base: Path) -> None:
        super().__init__(base)
        place = LinkPlace(base / "link" / "log", base / "link")
        self.sink = HandoverSink("second", place, 1024**2, "block")
        self.notes = place.database
        self.sink.prepare()

    def config(self) -> SourceConfig:
        return PipelineConfig(path="link")

    def offer(self, payloads: list[bytes]) -> None:
        start = self.offered - len(payloads)
        batch = BatchRef("there", start, self.offered)
        numbers = [orjson.loads(payload)["n"] for payload in payloads]
        writer = self.sink.open(Part(batch, 0, 0))
        ids = [f"there/{n}" for n in numbers]
        columns = {"event_id": ids, "n": numbers, "_origin": pa.array(numbers, pa.int64())}
        writer.write(pa.record_batch(columns))
        part = writer.close()
        self.sink.commit(batch, [part] if part else [])

    def got_back(self) -> int:
        notes = LinkNotes(self.notes)
        try:
            return len(notes.answered(0, self.offered).refused)
        finally:
            notes.close()

    def finish(self) -> None:
        self.sink.release()


OFFERS = {
    "files": FilesOffer,
    "generate": GenerateOffer,
    "http": HttpOffer,
    "nats": NatsOffer,
    "pipeline": PipelineOffer,
    "rabbitmq": RabbitmqOffer,
    "redis": RedisOffer,
    "stdin": StdinOffer,
}
