"""For each source: a way to put events in front of it, the same for all, for the conformance tests."""

from __future__ import annotations

import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

import httpx
import orjson
import pyarrow as pa
from pyroaring import BitMap64

from signoff.link.handover import HandoverSink, LinkPlace
from signoff.link.notes import LinkNotes
from signoff.pipeline.model import SourceConfig
from signoff.sinks.contract import BatchRef, Part
from signoff.sources.contract import EndOfSource, Resume, Settlement, Source, SourceContext
from signoff.sources.files import FilesConfig
from signoff.sources.generate import GenerateConfig
from signoff.sources.http import ADDRESS_FILE, HttpConfig
from signoff.sources.pipeline import PipelineConfig
from signoff.sources.rabbitmq import RabbitmqConfig
from signoff.sources.stdin import StdinConfig, StdinSource
from tests.brokers import RabbitMQ


class Offer(ABC):
    """Offers the events `{"n":0}`, `{"n":1}`, … to a source."""

    reads_again = True
    """After a crash the source gives again what was not logged."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.offered = 0

    @abstractmethod
    def config(self) -> SourceConfig: ...

    @abstractmethod
    def offer(self, payloads: list[bytes]) -> None: ...

    def put(self, count: int) -> None:
        payloads = [b'{"n":%d}' % n for n in range(self.offered, self.offered + count)]
        self.offered += count
        self.offer(payloads)

    def build(self) -> Source:
        return self.config().build(self.base)  # type: ignore[attr-defined,no-any-return]

    def open(self, resume: Resume | None = None, *, once: bool = False) -> Source:
        source = self.build()
        source.open(context(self.base, once=once), resume or Resume(0))
        return source

    def got_back(self) -> int:
        """How many of the events their place of origin was told to keep, by a negative answer."""
        raise NotImplementedError("it cannot acknowledge")

    def closed(self) -> None:
        """The source was closed; what is put now is for the next one."""

    def finish(self) -> None:
        """Clean up."""


class FilesOffer(Offer):
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


class GenerateOffer(Offer):
    def config(self) -> SourceConfig:
        return GenerateConfig(template="sequence", count=self.offered)

    def offer(self, payloads: list[bytes]) -> None:
        """The count says it all."""


class StdinOffer(Offer):
    reads_again = False

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


class HttpOffer(Offer):
    reads_again = False

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


class RabbitmqOffer(Offer):
    reads_again = False
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


class PipelineOffer(Offer):
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
    "pipeline": PipelineOffer,
    "rabbitmq": RabbitmqOffer,
    "stdin": StdinOffer,
}


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "this did not happen in time"
        time.sleep(0.002)


def context(base: Path, *, once: bool = False) -> SourceContext:
    return SourceContext("incoming", base / "own", once, base, state=base / "own")


def receive(source: Source, count: int, max_events: int = 1000) -> list[pa.RecordBatch]:
    """Batches until there are so many events."""
    batches: list[pa.RecordBatch] = []
    for _ in range(1000):
        if sum(len(batch) for batch in batches) >= count:
            return batches
        batch = source.receive(max_events, 0.05)
        if batch is not None:
            batches.append(batch)
    raise AssertionError(f"only {sum(map(len, batches))} of {count} events came")


def drain(source: Source, patience: int = 3) -> list[pa.RecordBatch]:
    """Batches until the source ends or stays silent."""
    batches, silent = [], 0
    while silent < patience:
        try:
            batch = source.receive(1000, 0.02)
        except EndOfSource:
            break
        silent = silent + 1 if batch is None else 0
        if batch is not None:
            batches.append(batch)
    return batches


def payloads(batches: list[pa.RecordBatch]) -> list[bytes]:
    return [payload for batch in batches for payload in batch.column("payload").to_pylist()]


def errors(batches: list[pa.RecordBatch]) -> list[str | None]:
    return [error for batch in batches for error in batch.column("error").to_pylist()]


def acknowledged(*sequences: int) -> Settlement:
    return Settlement(BitMap64(sequences))


def log(source: Source, batches: list[pa.RecordBatch], first: int = 0) -> int:
    """Tell the source that these batches are in the log; returns the next sequence number."""
    for batch in batches:
        source.logged(first, len(batch))
        first += len(batch)
    return first


def resume_after(batches: list[pa.RecordBatch]) -> Resume:
    last = batches[-1]
    return Resume(
        sum(map(len, batches)), last.column("unit")[-1].as_py(), last.column("position")[-1].as_py()
    )
