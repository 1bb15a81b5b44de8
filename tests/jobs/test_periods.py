"""Periods follow each other without gap or overlap, whatever the clock does."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from pydantic import ValidationError

from signoff.jobs.periods import Period, periods
from signoff.pipeline.schedule_settings import Schedule


def found(cron: str, zone: str, after: str, upto: str) -> list[Period]:
    moments = (datetime.fromisoformat(text).replace(tzinfo=UTC) for text in (after, upto))
    return list(periods(Schedule(cron=cron, timezone=zone), *moments))


def test_a_day_is_a_period_also_if_it_has_23_or_25_hours() -> None:
    spring = found("0 6 * * *", "Europe/Helsinki", "2026-03-28T00:00", "2026-03-31T00:00")
    assert [each.name for each in spring] == [
        "2026-03-28T06:00:00+02:00", "2026-03-29T06:00:00+03:00", "2026-03-30T06:00:00+03:00",
    ]  # fmt: skip
    hours = [(each.end - each.start.astimezone(UTC)) / timedelta(hours=1) for each in spring]
    assert hours == [24.0, 23.0, 24.0]
    autumn = found("0 6 * * *", "Europe/Helsinki", "2026-10-24T00:00", "2026-10-27T00:00")
    assert [(each.end - each.start.astimezone(UTC)) / timedelta(hours=1) for each in autumn] == [
        24.0,
        25.0,
        24.0,
    ]


def test_a_time_that_the_clock_skips_is_the_moment_after_the_gap() -> None:
    around = found("30 3 * * *", "Europe/Helsinki", "2026-03-28T00:00", "2026-03-30T23:00")
    assert [each.name for each in around] == [
        "2026-03-28T03:30:00+02:00", "2026-03-29T04:00:00+03:00", "2026-03-30T03:30:00+03:00",
    ]  # fmt: skip


def test_a_time_that_the_clock_shows_twice_is_there_once() -> None:
    around = found("30 3 * * *", "Europe/Helsinki", "2026-10-24T12:00", "2026-10-26T12:00")
    assert [each.name for each in around] == ["2026-10-25T03:30:00+03:00", "2026-10-26T03:30:00+02:00"]


@pytest.mark.parametrize(
    "cron", ["0 6 * * *", "*/7 * * * *", "30 3 * * *", "0 0 1 * *", "15 2 * * 0", "0 0 29 2 *"]
)
@pytest.mark.parametrize("zone", ["UTC", "Europe/Helsinki", "America/New_York", "Australia/Lord_Howe"])
def test_periods_have_no_gaps_and_do_not_depend_on_when_they_are_asked_for(cron: str, zone: str) -> None:
    span = 1500 if cron == "0 0 29 2 *" else 20 if cron.startswith("*/7") else 250
    for begin in (datetime(2026, 3, 20, tzinfo=UTC), datetime(2026, 10, 20, tzinfo=UTC)):
        end = begin + timedelta(days=span)
        whole = list(periods(Schedule(cron=cron, timezone=zone), begin, end))
        assert whole
        for one, two in pairwise(whole):
            assert one.end.timestamp() == two.start.timestamp() and two.start < two.end
        middle = whole[len(whole) // 2].end.astimezone(UTC)
        parts = [*periods(Schedule(cron=cron, timezone=zone), begin, middle),
                 *periods(Schedule(cron=cron, timezone=zone), middle, end)]  # fmt: skip
        assert [each.name for each in parts] == [each.name for each in whole]


def test_names_of_days_and_months_are_no_chance() -> None:
    for cron in ("0 6 * mar-apr thu", "0 6-16 1-11 * *", "0 6 L * *", "30 5 * * fri#1", "0 0 29 2 *"):
        assert Schedule(cron=cron).cron == cron


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"cron": "0 6 * *"}, "is no cron expression"),
        ({"cron": "* * * * * *"}, "is no cron expression"),
        ({"cron": "R 6 * * *"}, "is no cron expression"),
        ({"cron": "0 0 r(1-5)/2 * *"}, "is no cron expression"),
        ({"cron": "0,H 6 * * *"}, "is no cron expression"),
        ({"cron": "0 6-6 * * *"}, "write 6 for 6-6"),
        ({"cron": "30 6 * * 1,Fri-fri"}, "write Fri for Fri-fri"),
        ({"cron": "0 0 31 2 *"}, "names no time that ever comes"),
        ({"cron": "0 6 * * *", "parameters": {"day": "{start.day.real.nothing}"}}, "may name {start}"),
        ({"cron": "0 6 * * *", "timezone": "Europe/Helsinky"}, "there is no time zone"),
        ({"cron": "0 6 * * *", "parameters": {"day": "{begin}"}}, "may name {start} and {end} only"),
    ],
)
def test_a_schedule_that_cannot_be_kept_is_refused(fields: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(said)):
        Schedule.model_validate(fields)
