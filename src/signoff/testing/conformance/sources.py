"""What every source must do, by the contract: the same tests for all of them.

What is asked of the source alone is asked in this process, step by step as the intake would. The last
question kills a real intake process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pytest
from pyroaring import BitMap64

from signoff.errors import LogError
from signoff.intake import Instructions
from signoff.log import LogReader
from signoff.log.event_schema import EVENT_SCHEMA
from signoff.pipeline.model import SourceConfig
from signoff.sources.contract import EndOfSource, Resume, Settlement, Source, SourceContext
from signoff.testing.conformance.described import describes_itself
from signoff.testing.conformance.sinks import python_path


class SourceOffer(ABC):
    """Puts the events `{"n":0}`, `{"n":1}`, … in front of a source. Made anew for each question."""

    reads_again: ClassVar[bool] = True
    """After a crash the source gives again, in the same order, what was not logged. False where the other
    side cannot be asked again, or gives more than that once more."""
    answers_together: ClassVar[bool] = False
    """A negative answer concerns all events that came together (a file, a request), not one alone."""
    in_a_process: ClassVar[bool] = True
    """An intake process of its own can open it: the type is installed, and what is offered can be seen
    there."""

    def __init__(self, base: Path) -> None:
        """`base`: an empty directory, the one of the pipeline file."""
        self.base = base
        self.offered = 0

    @abstractmethod
    def config(self) -> SourceConfig:
        """The source's config; asked for each time it is opened."""

    @abstractmethod
    def offer(self, payloads: list[bytes]) -> None:
        """Put these events where the source finds them. May be called before and after it is opened."""

    def payload(self, number: int) -> bytes:
        """The event of this number, for a source that cannot give any bytes."""
        return b'{"n":%d}' % number

    def payloads(self, *numbers: int) -> list[bytes]:
        return [self.payload(number) for number in numbers]

    def put(self, count: int) -> None:
        """Offer so many further events."""
        payloads = self.payloads(*range(self.offered, self.offered + count))
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


class SourceConformance:
    """Subclass it as `TestSomething`, and give it a fixture `offer` that makes a SourceOffer."""

    def test_events_come_in_order_and_in_the_schema_of_the_log(self, offer: SourceOffer) -> None:
        offer.put(10)
        source = offer.open()
        batches = receive(source, 10)
        assert payloads(batches) == offer.payloads(*range(10))
        for batch in batches:
            assert batch.schema.equals(EVENT_SCHEMA)
            batch.validate(full=True)
            assert batch.column("received_at").null_count == 0
        source.close()

    def test_no_more_events_come_at_a_time_than_were_asked_for(self, offer: SourceOffer) -> None:
        offer.put(10)
        source = offer.open()
        batches = receive(source, 10, max_events=3)
        assert max(len(batch) for batch in batches) <= 3
        assert payloads(batches) == offer.payloads(*range(10))
        source.close()

    def test_a_source_without_events_returns_nothing_or_ends(self, offer: SourceOffer) -> None:
        offer.put(0)
        source = offer.open()
        assert drain(source) == []
        assert source.drained()
        source.close()

    def test_positions_never_go_backwards(self, offer: SourceOffer) -> None:
        offer.put(4)
        offer.put(3)
        source = offer.open()
        rows = [row for batch in receive(source, 7, max_events=2) for row in batch.to_pylist()]
        places = [(row["unit"] or 0, row["position"]) for row in rows]
        assert places == sorted(set(places))
        source.close()

    def test_settlement_comes_in_any_order_and_may_be_repeated(self, offer: SourceOffer) -> None:
        offer.put(5)
        source = offer.open()
        log(source, receive(source, 5, max_events=2))
        source.settle(acknowledged(4, 0))
        source.settle(acknowledged(4, 0))
        source.settle(acknowledged(1, 3))
        source.settle(acknowledged(2))
        source.settle(acknowledged(0, 1, 2, 3, 4))
        assert source.drained()
        source.close()

    def test_unknown_sequence_numbers_are_ignored(self, offer: SourceOffer) -> None:
        offer.put(2)
        source = offer.open()
        log(source, receive(source, 2))
        source.settle(Settlement(acknowledged(900).acknowledged, {901: "no"}, {902: "late"}))
        source.settle(acknowledged(0, 1))
        assert source.drained()
        source.close()

    def test_a_source_that_acknowledges_is_not_drained_while_an_event_is_owed(
        self, offer: SourceOffer
    ) -> None:
        if not offer.config().can_acknowledge:
            pytest.skip("nobody to be told")
        offer.put(3)
        source = offer.open()
        log(source, receive(source, 3))
        source.settle(acknowledged(0, 2))
        assert not source.drained()
        source.settle(acknowledged(1))
        assert source.drained()
        source.close()

    def test_an_expired_event_is_a_negative_answer_and_owed_no_more(self, offer: SourceOffer) -> None:
        """Each source says no as it can; a file is one answer for all its events."""
        if not offer.config().can_acknowledge:
            pytest.skip("nobody to be told")
        offer.put(3)
        source = offer.open()
        log(source, receive(source, 3))
        assert drain(source) == []  # a file is read to its end
        source.stop()  # or RabbitMQ would have it delivered again at once
        source.settle(acknowledged(0))
        expired = Settlement(acknowledged().acknowledged, {}, {1: "late", 2: "late"})
        source.settle(expired)
        assert source.drained()
        source.settle(expired)
        source.settle(acknowledged(1))  # too late
        assert source.drained()
        wait_until(lambda: offer.got_back() == (3 if offer.answers_together else 2))
        source.close()

    def test_only_a_source_that_can_acknowledge_has_a_lease_to_extend(self, offer: SourceOffer) -> None:
        config = offer.config()
        assert config.lease_cap_s is None or (config.can_acknowledge and config.patience_s is not None)
        assert config.lease_cap_s is None or config.lease_cap_s < (config.patience_s or 0)

    def test_reading_goes_on_after_the_last_event_in_the_log(self, offer: SourceOffer) -> None:
        """A crash: two batches were handed out, only the first is in the log."""
        offer.put(4)
        offer.put(4)
        source = offer.open()
        batches = receive(source, 6, max_events=3)
        kept = batches[:1]
        source.close()  # as a crash, as far as the outside is concerned
        offer.closed()
        offer.put(2)
        source = offer.open(resume_after(kept))
        again: list[pa.RecordBatch] = []

        def the_last_two_came() -> bool:
            again.extend(drain(source))
            return payloads(again)[-2:] == offer.payloads(8, 9)

        wait_until(the_last_two_came)
        if offer.reads_again:
            assert payloads(kept) + payloads(again) == offer.payloads(*range(10))
        first, last = again[0], kept[-1]
        place = [(batch.column("unit"), batch.column("position")) for batch in (last, first)]
        assert (place[0][0][-1].as_py() or 0, place[0][1][-1].as_py()) < (
            place[1][0][0].as_py() or 0,
            place[1][1][0].as_py(),
        )
        source.close()

    def test_a_stopped_source_goes_on_settling(self, offer: SourceOffer) -> None:
        offer.put(3)
        source = offer.open()
        log(source, receive(source, 3))
        source.stop()
        source.settle(acknowledged(0, 1, 2))
        assert source.drained()
        source.close()

    def test_an_unsettled_source_can_be_closed(self, offer: SourceOffer) -> None:
        offer.put(3)
        source = offer.open()
        log(source, receive(source, 3))
        source.close()

    def test_config_survives_the_way_to_the_intake_process(self, offer: SourceOffer) -> None:
        config = offer.config()
        instructions = Instructions.of("incoming", config, state=Path("state"), base=Path())
        assert Instructions.decode(instructions.encode()) == instructions
        assert instructions.source_config() == config

    def test_every_field_is_documented(self, offer: SourceOffer) -> None:
        undocumented = [
            name
            for name, field in type(offer.config()).model_fields.items()
            if not field.description and name not in ("type", "log")
        ]
        assert undocumented == []

    def test_a_first_start_is_a_resume_without_a_place(self, offer: SourceOffer) -> None:
        offer.put(1)
        source = offer.open(Resume(0, None, None))
        assert payloads(receive(source, 1)) == offer.payloads(0)
        source.close()

    def test_the_type_describes_itself(self, offer: SourceOffer) -> None:
        describes_itself(type(offer.config()), "source")

    def test_a_killed_intake_loses_nothing(self, offer: SourceOffer) -> None:
        """SIGKILL while it receives; what it gives after that continues what is in the log, without a gap."""
        if not offer.in_a_process:
            pytest.skip("it can only be opened in the process of the test")
        offer.put(20)
        with intake(offer) as instructions:
            wait_until(lambda: head(instructions) > 0)
        offer.closed()
        kept = logged(instructions)
        assert kept == offer.payloads(*range(len(kept)))
        offer.put(5)
        with intake(offer) as instructions:
            wait_until(lambda: head(instructions) >= offer.offered, 60)
            wait_until(lambda: set(logged(instructions)) >= set(offer.payloads(*range(offer.offered))), 60)
        offer.closed()
        assert logged(instructions) == offer.payloads(*range(offer.offered))


@contextmanager
def intake(offer: SourceOffer) -> Iterator[Instructions]:
    """A real intake process, ended by SIGKILL."""
    state = offer.base / "state"
    instructions = Instructions.of("incoming", offer.config(), state=state, base=offer.base)
    process = subprocess.Popen(
        [sys.executable, "-m", "signoff.intake"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": python_path()},
    )
    assert process.stdin is not None and process.stderr is not None
    try:
        process.stdin.write(instructions.encode())
        process.stdin.flush()
        yield instructions
    except AssertionError:
        process.kill()
        sys.stderr.write(process.stderr.read().decode())
        raise
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdin.close()
        process.stderr.close()


def head(instructions: Instructions) -> int:
    """How many events are in the log of an intake."""
    try:
        return LogReader(instructions.log_directory).head()
    except LogError:  # not made yet
        return 0


def logged(instructions: Instructions) -> list[bytes]:
    """The payloads in the log, in order."""
    reader = LogReader(instructions.log_directory)
    batches = [batch for _, batch in reader.read(reader.first(), reader.head())]
    return payloads(batches)


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Until it is true; an error if that takes longer than anybody would wait."""
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
