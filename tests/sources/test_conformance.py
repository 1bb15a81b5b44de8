"""What every source must do, by the contract: the same tests for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from signoff.intake import Job
from signoff.sources import TYPES
from signoff.sources.contract import EVENT_SCHEMA, Resume, Settlement
from tests.sources.offers import (
    OFFERS,
    Offer,
    RabbitmqOffer,
    acknowledged,
    drain,
    log,
    payloads,
    receive,
    resume_after,
    wait_until,
)


@pytest.fixture(params=sorted(OFFERS))
def offer(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Offer]:
    if request.param == "rabbitmq":
        RabbitmqOffer.broker = request.getfixturevalue("rabbitmq")
    made = OFFERS[request.param](tmp_path)
    yield made
    made.finish()


def numbered(*numbers: int) -> list[bytes]:
    return [b'{"n":%d}' % number for number in numbers]


def test_every_source_type_is_tested() -> None:
    assert set(OFFERS) == set(TYPES)


def test_events_come_in_order_and_in_the_schema_of_the_log(offer: Offer) -> None:
    offer.put(10)
    source = offer.open()
    batches = receive(source, 10)
    assert payloads(batches) == numbered(*range(10))
    for batch in batches:
        assert batch.schema.equals(EVENT_SCHEMA)
        batch.validate(full=True)
        assert batch.column("received_at").null_count == 0
    source.close()


def test_no_more_events_come_at_a_time_than_were_asked_for(offer: Offer) -> None:
    offer.put(10)
    source = offer.open()
    batches = receive(source, 10, max_events=3)
    assert max(len(batch) for batch in batches) <= 3
    assert payloads(batches) == numbered(*range(10))
    source.close()


def test_a_source_without_events_returns_nothing_or_ends(offer: Offer) -> None:
    offer.put(0)
    source = offer.open()
    assert drain(source) == []
    assert source.drained()
    source.close()


def test_positions_never_go_backwards(offer: Offer) -> None:
    offer.put(4)
    offer.put(3)
    source = offer.open()
    rows = [row for batch in receive(source, 7, max_events=2) for row in batch.to_pylist()]
    places = [(row["unit"] or 0, row["position"]) for row in rows]
    assert places == sorted(set(places))
    source.close()


def test_settlement_comes_in_any_order_and_may_be_repeated(offer: Offer) -> None:
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


def test_unknown_sequence_numbers_are_ignored(offer: Offer) -> None:
    offer.put(2)
    source = offer.open()
    log(source, receive(source, 2))
    source.settle(Settlement(acknowledged(900).acknowledged, {901: "no"}, {902: "late"}))
    source.settle(acknowledged(0, 1))
    assert source.drained()
    source.close()


def test_a_source_that_acknowledges_is_not_drained_while_an_event_is_owed(offer: Offer) -> None:
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


def test_an_expired_event_is_a_negative_answer_and_owed_no_more(offer: Offer) -> None:
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
    wait_until(lambda: offer.got_back() == (3 if offer.config().type in ("files", "http") else 2))
    source.close()


def test_only_a_source_that_can_acknowledge_has_a_lease_to_extend(offer: Offer) -> None:
    config = offer.config()
    assert config.lease_cap_s is None or (config.can_acknowledge and config.patience_s is not None)
    assert config.lease_cap_s is None or config.lease_cap_s < (config.patience_s or 0)


def test_reading_goes_on_after_the_last_event_in_the_log(offer: Offer) -> None:
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
    wait_until(lambda: again.extend(drain(source)) or payloads(again)[-2:] == numbered(8, 9))
    if offer.reads_again:
        assert payloads(kept) + payloads(again) == numbered(*range(10))
    first, last = again[0], kept[-1]
    place = [(batch.column("unit"), batch.column("position")) for batch in (last, first)]
    assert (place[0][0][-1].as_py() or 0, place[0][1][-1].as_py()) < (
        place[1][0][0].as_py() or 0,
        place[1][1][0].as_py(),
    )
    source.close()


def test_a_stopped_source_goes_on_settling(offer: Offer) -> None:
    offer.put(3)
    source = offer.open()
    log(source, receive(source, 3))
    source.stop()
    source.settle(acknowledged(0, 1, 2))
    assert source.drained()
    source.close()


def test_an_unsettled_source_can_be_closed(offer: Offer) -> None:
    offer.put(3)
    source = offer.open()
    log(source, receive(source, 3))
    source.close()


def test_config_survives_the_way_to_the_intake_process(offer: Offer) -> None:
    config = offer.config()
    job = Job.of("incoming", config, state=Path("state"), base=Path())
    assert Job.decode(job.encode()) == job
    assert job.source_config() == config


def test_every_field_is_documented(offer: Offer) -> None:
    undocumented = [
        name
        for name, field in type(offer.config()).model_fields.items()
        if not field.description and name not in ("type", "log")
    ]
    assert undocumented == []


def test_a_first_start_is_a_resume_without_a_place(offer: Offer) -> None:
    offer.put(1)
    source = offer.open(Resume(0, None, None))
    assert payloads(receive(source, 1)) == numbered(0)
    source.close()
