"""What a run shows of itself, made from given moments; without a run."""

from __future__ import annotations

import json
import logging
import re
import sys
from dataclasses import replace
from io import BytesIO, StringIO

import pytest
from rich.console import Console

from signoff.ledger.outcome import Account
from signoff.logs import set_up_logging
from signoff.run.progress_snapshot import Moment, Rates, SinkMoment, SourceMoment
from signoff.watch.progress import Lines, Progress, picture, sentence

START = Moment("alarms", "starting", 4.2, {"incoming": SourceMoment(Account())}, {"table": SinkMoment()}, 0.0)


def moment(at: float = 0.0, **changes: object) -> Moment:
    return replace(START, phase="running", at=at, **changes)


def flowing(
    at: float, received: int, delivered: int, *, taken: int = 0, expected: int | None = None
) -> Moment:
    account = Account(received=received, delivered=delivered, in_flight=received - delivered)
    return moment(at, sources={"incoming": SourceMoment(account, taken, "receiving", expected)})


def drawn(*moments: Moment, width: int = 80) -> str:
    console = Console(file=StringIO(), width=width, force_terminal=True, color_system=None)
    rates = Rates()
    for each in moments:
        rates.add(each)
    console.print(picture(moments[-1], rates))
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        (START, "starting Spark, 4 s"),
        (moment(), "running: waiting for events"),
        (flowing(0, 500, 0, taken=300), "running: 300 events in batches under way"),
        (flowing(0, 500, 0), "running: 500 events wait"),
        (
            replace(flowing(0, 10, 9), phase="stopping", left_s=27.4),
            "stopping: finishing 1 event, for at most 27 s more",
        ),
        (replace(moment(), phase="stopping", left_s=30.0), "stopping: ending Spark, for at most 30 s more"),
        (replace(moment(), phase="telling"), "stopping: telling the sources what became of their events"),
    ],
)
def test_what_is_happening_is_one_sentence(shown: Moment, said: str) -> None:
    assert sentence(shown) == said
    assert said in drawn(shown)


def test_rates_are_those_of_the_last_seconds() -> None:
    picture_ = drawn(
        flowing(0, 0, 0), flowing(10, 100_000, 0), flowing(11, 100_000, 0), flowing(16, 100_250, 0)
    )
    assert " 50 " in picture_, "250 events in the last 5 seconds, whatever came before"


def test_a_known_end_has_a_bar_with_the_time_left() -> None:
    shown = drawn(flowing(0, 1000, 200, expected=1000), flowing(4, 1000, 600, expected=1000))
    assert "60 %" in shown and "600 of 1,000" in shown and "100/s" in shown and "4 s left" in shown
    assert "left" not in drawn(flowing(0, 1000, 200), flowing(4, 1000, 600)), "more may come"
    assert "100 %" in drawn(flowing(0, 10, 10, expected=10))


def test_an_end_that_is_about_known_has_a_bar_too_and_fits_80_columns() -> None:
    def read(at: float, settled: int) -> Moment:
        account = Account(received=80_000_000, delivered=settled, in_flight=80_000_000 - settled)
        source = SourceMoment(account, 0, "receiving", 123_456_789, estimated=True)
        return moment(at, sources={"incoming": source})

    shown = drawn(read(0, 12_000_000), read(4, 12_345_678))
    (line,) = (line for line in shown.splitlines() if "left" in line)
    assert len(line) <= 80
    assert "9 %" in line and "12.3 M of about 123.5 M" in line and "86,420/s" in line and "min left" in line
    slow = drawn(read(0, 12_000_000), read(4, 12_000_008))
    (line,) = (line for line in slow.splitlines() if "left" in line)
    assert len(line) <= 80 and "12.0 M of about 123.5 M" in line and "2/s" in line


def test_everything_is_readable_at_80_columns() -> None:
    account = Account(
        received=123_456_789,
        delivered=100_000_000,
        dropped=20_000_000,
        dead_lettered=3_000_000,
        in_flight=456_789,
    )
    sources = {"a_source_with_a_long_name": SourceMoment(account, 456_789, "held: the log is full " * 5)}
    sinks = {"warehouse": SinkMoment(99, "connection refused " * 9, 0.0)}
    shown = drawn(moment(sources=sources, sinks=sinks))
    assert max(map(len, shown.splitlines())) <= 80
    for text in (
        "123.5 M",
        "456,789",
        "100.0 M",
        "20.0 M",
        "3,000,000",
        "dead-lettered",
        "held: the log is full",
    ):
        assert text in shown
    assert "refused" not in shown.split("warehouse")[0], "an outcome that nothing has takes no room"
    assert "failing for" in shown and "connection refused" in shown


def test_a_log_gets_a_line_when_something_has_changed() -> None:
    log = Lines()

    def said(shown: Moment) -> list[str]:
        return [line.text for line in log.of(shown)]

    assert said(START) == ["alarms: starting Spark"]
    assert said(replace(START, at=9.0, since_s=13.0)) == [], "nothing has changed"
    assert said(flowing(10, 0, 0)) == ["alarms: running"]
    counted = "incoming: received=5 delivered=3 dropped=0 dead_lettered=0 refused=0 expired=0 in_flight=2"
    assert said(flowing(11, 5, 3)) == [counted]
    assert said(flowing(12, 6, 3)) == [], "not more often than in five seconds"
    assert said(flowing(17, 6, 3)) == [counted.replace("d=5", "d=6").replace("t=2", "t=3")]
    assert said(flowing(99, 6, 3)) == []
    failing = replace(flowing(100, 6, 3), sinks={"table": SinkMoment(3, "it is locked", 0.0)})
    assert said(failing) == ['sink "table" fails: it is locked']
    assert said(failing) == []
    assert said(flowing(101, 6, 3)) == ['sink "table" works again']
    assert said(replace(flowing(102, 6, 3), phase="stopping", left_s=30.0)) == [
        "alarms: stopping: finishing 3 events, for at most 30 s more"
    ]
    assert said(replace(flowing(103, 6, 3), phase="stopping", left_s=29.0)) == []
    assert said(replace(flowing(104, 6, 6), phase="ended")) == [
        "account of incoming: "
        "received=6 delivered=6 dropped=0 dead_lettered=0 refused=0 expired=0 in_flight=0"
    ]


def test_without_a_terminal_nothing_is_drawn_twice_and_quiet_is_quiet() -> None:
    for quiet in (False, True):
        file = StringIO()
        with Progress(quiet=quiet, console=Console(file=file, width=80)) as progress:
            for at in range(3):
                if not quiet:
                    progress.show(replace(START, at=float(at)))
        said = "" if quiet else r"\d\d:\d\d:\d\d info    alarms: starting Spark\n"
        assert re.fullmatch(said, file.getvalue())


def test_every_line_without_a_terminal_has_a_time_and_a_level() -> None:
    file = StringIO()
    failing = {"table": SinkMoment(3, "it is locked", 0.0)}
    with Progress(quiet=False, console=Console(file=file, width=80)) as progress:
        progress.show(flowing(1, 5, 3))
        progress.show(replace(flowing(2, 5, 3), sinks=failing))
        progress.show(flowing(3, 5, 3))
        progress.show(replace(flowing(4, 5, 5), phase="stopping"))
        progress.show(replace(flowing(5, 5, 5), phase="ended"))
    timed = [re.fullmatch(r"\d\d:\d\d:\d\d (.*)", line) for line in file.getvalue().splitlines()]
    counted = "received=5 delivered={} dropped=0 dead_lettered=0 refused=0 expired=0 in_flight={}"
    assert [line and line[1] for line in timed] == [
        "info    alarms: running",
        "info    incoming: " + counted.format(3, 2),
        'warning sink "table" fails: it is locked',
        'info    sink "table" works again',
        "info    alarms: stopping: ending Spark",
        "info    account of incoming: " + counted.format(5, 0),
    ]


def test_the_log_of_a_service_says_when_a_run_starts_works_stops_and_how_it_ended(
    capsys: pytest.CaptureFixture[str],
) -> None:
    set_up_logging("json")
    with Progress(quiet=False, logged=True) as progress:
        for shown in (
            START,
            flowing(1, 3, 1),
            flowing(9, 5, 4),
            replace(flowing(10, 5, 5), phase="stopping"),
        ):
            progress.show(shown)
        progress.show(replace(flowing(11, 5, 5), phase="ended"))
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["message"] for line in lines] == [
        "alarms: starting Spark",
        "alarms: running",
        "alarms: stopping: ending Spark",
        "account of incoming: received=5 delivered=5 dropped=0 dead_lettered=0 refused=0 expired=0 "
        "in_flight=0",
    ]
    assert {line["level"] for line in lines} == {"info"}
    numbers = {"received": 5, "delivered": 5, "dropped": 0, "dead_lettered": 0, "refused": 0, "expired": 0}
    account = {"source": "incoming", **numbers, "in_flight": 0}
    assert {key: lines[-1].get(key) for key in account} == account


def test_on_a_terminal_the_account_is_the_last_line() -> None:
    file = StringIO()
    with Progress(quiet=False, console=Console(file=file, width=80, force_terminal=True)) as progress:
        progress.show(flowing(0, 6, 3))
        progress.show(replace(flowing(1, 6, 6), phase="ended"))
    last = file.getvalue().rstrip().splitlines()[-1]
    assert "account of incoming: received=6 delivered=6 " in last


def test_what_sinks_and_sources_say_is_not_obeyed_by_a_terminal() -> None:
    odd = "no \x1b[2K\x9b1G\r"
    sinks = {"table": SinkMoment(1, odd, 1.0)}
    shown = drawn(moment(sources={"incoming": SourceMoment(Account(), 0, odd)}, sinks=sinks), width=160)
    assert not set(shown) & {*"\x1b\x9b\r"} and shown.count("\\u001b[2K") == 2


def test_what_processes_of_a_run_write_is_not_obeyed_by_a_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from signoff.run.processes import _relay

    class Terminal(StringIO):
        def isatty(self) -> bool:
            return True

    for stream, said in ((Terminal(), "a \\u001b]0;x\\u0007 ä\n"), (StringIO(), "a \x1b]0;x\x07 ä\n")):
        monkeypatch.setattr(sys, "stderr", stream)
        _relay(BytesIO("a \x1b]0;x\x07 ä\n".encode()))
        assert stream.getvalue() == said
        set_up_logging("text")
        logging.getLogger("signoff.test").warning("%s", "b \x1b]0;x")
        assert ("\x1b" in stream.getvalue().splitlines()[1]) != stream.isatty()
    logging.getLogger("signoff").handlers[:] = []
    logging.getLogger("signoff").propagate = True
