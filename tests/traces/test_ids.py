"""Ids of traces and spans follow from the event."""

from __future__ import annotations

import pytest

from signoff.traces.ids import Context, context_of_batch, sampled_context, traced

SENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_context_that_a_message_brings_is_continued() -> None:
    event = traced("incoming", 7, 1_000, {"traceparent": SENT})
    assert event.parent == Context(0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331)
    assert event.trace == event.parent.trace
    assert str(event.parent) == SENT
    assert str(event.context("send", "out")).startswith("00-0af7651916cd43dd8448eb211c80319c-")


def test_the_ids_of_an_event_are_the_same_whenever_it_comes_and_others_for_every_other() -> None:
    event = traced("incoming", 7, 1_000, {})
    assert event == traced("incoming", 7, 1_000, {})
    assert event.parent is None
    others = [
        traced("incoming", 8, 1_000, {}), traced("other", 7, 1_000, {}),
        traced("incoming", 7, 2_000, {}),  # of a state directory that was begun anew
    ]  # fmt: skip
    assert len({each.trace for each in (event, *others)}) == 4
    spans = [event.context("receive"), event.context("settle"), event.context("process")]
    spans += [event.context("send", "a"), event.context("send", "b")]
    assert len({context.span for context in spans}) == 5
    batch = context_of_batch("incoming", 0, 9, spans[0])
    assert batch == context_of_batch("incoming", 0, 9, spans[0])
    assert batch.trace != event.trace


@pytest.mark.parametrize(
    "header",
    [
        None, "", "00", SENT.replace("-01", "-00"), SENT.upper(), f"ff{SENT[2:]}", SENT[:-1], f" {SENT}",
        "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01", "x" * 100_000, SENT.replace("0a", "٣a"),
    ],
)  # fmt: skip
def test_what_is_no_sampled_context_is_none(header: str | None) -> None:
    assert sampled_context(header) is None


def test_a_later_version_of_the_header_may_say_more() -> None:
    assert sampled_context(f"01{SENT[2:]}-more") is not None
    assert sampled_context(SENT.replace("-01", "-03")) is not None
