"""Which events are traced: every process chooses the same ones, and never too many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from signoff.log import LogReader, LogWriter
from signoff.pipeline.model import LogSettings
from signoff.pipeline.trace_settings import TraceSettings
from signoff.sources.events import event_batch, piece
from signoff.traces.chosen import MOST_AT_ONCE, Chooser

SENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def logged(directory: Path, headers: Sequence[Mapping[str, str]]) -> LogReader:
    log = LogWriter(directory, LogSettings())
    try:
        events = piece([b"{}"] * len(headers), list(range(len(headers))), {})
        log.append(event_batch(events, headers=headers, message_ids=[f"m{n}" for n in range(len(headers))]))
        log.sync()
    finally:
        log.close()
    return LogReader(directory)


def numbers(chooser: Chooser, log: LogReader, start: int, end: int, **how: bool) -> list[int]:
    return [event.sequence for event in chooser.choose(log, start, end, **how)]


def test_without_a_ratio_only_events_that_bring_a_sampled_context(tmp_path: Path) -> None:
    log = logged(tmp_path, [{}, {"traceparent": SENT}, {"other": SENT}, {"traceparent": SENT[:-1] + "0"}])
    (event,) = Chooser("incoming", TraceSettings()).choose(log, 0, 4)
    assert event.sequence == 1
    assert str(event.parent) == SENT
    assert event.row_id == "incoming/1"
    (event,) = Chooser("incoming", TraceSettings(), keeps_ids=True).choose(log, 1, 4)
    assert event.row_id == "m1"


def test_a_ratio_is_a_share_of_the_events_and_the_same_ones_however_they_are_cut(tmp_path: Path) -> None:
    log = logged(tmp_path, [{}] * 20_000)
    settings = TraceSettings(ratio=0.002, max_events_per_second=10_000)
    whole = numbers(Chooser("incoming", settings), log, 0, 20_000)
    parts = [
        number
        for start in range(0, 20_000, 700)
        for number in numbers(Chooser("incoming", settings), log, start, min(start + 700, 20_000))
    ]
    assert whole == parts
    assert 15 <= len(whole) <= 80
    assert whole != numbers(Chooser("other", settings), log, 0, 20_000)
    assert numbers(Chooser("incoming", TraceSettings(ratio=1.0)), log, 5, 8) == [5, 6, 7]


def test_of_too_many_all_processes_keep_the_same_ones_and_say_how_many_are_left_out(tmp_path: Path) -> None:
    log = logged(tmp_path, [{"traceparent": SENT}] * 1_000)
    clock = Clock()
    few, fewer = (
        Chooser("incoming", TraceSettings(ratio=1.0, max_events_per_second=most), clock=clock)
        for most in (20, 10)
    )
    chosen = numbers(few, log, 0, 1_000)
    assert len(chosen) == 20
    assert few.left_out == 980
    assert set(numbers(fewer, log, 0, 1_000)) < set(chosen)
    assert numbers(few, log, 0, 1_000) == [], "of this second there were enough"
    clock.now = 0.5
    assert len(numbers(few, log, 0, 1_000)) == 10
    assert len(numbers(few, log, 0, 1_000, limited=False)) == MOST_AT_ONCE, "as many links as a span may have"


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"endpoint": "localhost:4318"}, "not an http"),
        ({"endpoint": "http://me:secret@host"}, "password"),
        ({"endpoint": "http://host?token=1"}, "query"),
        ({"ratio": 1.5}, "less than or equal to 1"),
        ({"ratio": -0.1}, "greater than or equal to 0"),
        ({"headers": {"a b": "c"}}, "cannot be the name of a header"),
        ({"sampler": "x"}, "not permitted"),
    ],
)
def test_settings_that_make_no_sense_are_refused(fields: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        TraceSettings.model_validate(fields)
