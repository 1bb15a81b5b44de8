"""Times in bulk: the forms that are read, and that all others are uncertain."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from signoff.transforms.parsing.fixed_times import FixedTimes

JAVAS_OWN = ["yyyyMMddHHmmssSSS", "yyyy-MM-ddXXX z", "yyyy-MM-dd'T''x'HH", "yyyy-MM-dd'é'", "SSyyyyMMdd"]
MOMENT = datetime(2024, 2, 29, 23, 59, 7, 120_000, tzinfo=UTC)


def read(pattern: str | None, *texts: str | None) -> list[datetime | str | None]:
    times = FixedTimes.of(pattern)
    assert times is not None
    found, certain = times.read(pa.array(texts, pa.string()))
    return [
        time if sure else "uncertain" for time, sure in zip(found.to_pylist(), certain.tolist(), strict=True)
    ]


@pytest.mark.parametrize(
    "text",
    [
        "2024-02-29T23:59:07.12Z",
        "2024-02-29T23:59:07.120000Z",
        "2024-02-29 23:59:07.120",
        "2024-02-29 23:59:07.12 UTC",
        "2024-03-01T01:29:07.12+01:30",
        "2024-02-29T18:59:07.120-05:00",
    ],
)
def test_iso(text: str) -> None:
    assert read(None, text, None, text) == [MOMENT, None, MOMENT]


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("yyyy-MM-dd HH:mm:ss.SS z", "2024-02-29 23:59:07.12 UTC"),
        ("yyyyMMdd'T'HHmmss,SSSX", "20240229T235907,120Z"),
        ("dd/MM/yyyy HH:mm:ss.SSSXXX", "01/03/2024 00:59:07.120+01:00"),
    ],
)
def test_patterns(pattern: str, text: str) -> None:
    assert read(pattern, text, text[:-1], "") == [MOMENT, "uncertain", "uncertain"]


@pytest.mark.parametrize(
    "text",
    [
        "2023-02-29T00:00:00Z",
        "2024-13-01T00:00:00Z",
        "2024-00-01T00:00:00Z",
        "2024-01-00T00:00:00Z",
        "2024-01-01T24:00:00Z",
        "2024-01-01T00:60:00Z",
        "2024-01-01T00:00:60Z",
        "0001-01-01T00:00:00Z",
        "2024-01-01T00:00:00+19:00",
        "2024-01-01T00:00:00+01:60",
        "2024-01-01T00:00:0/Z",
        "2024-01-01T00:00:0٣Z",
        "2024-01-01X00:00:00Z",
        "2024-1-1T00:00:00Z",
    ],
)
def test_what_is_no_time_or_may_be_another_elsewhere_is_uncertain(text: str) -> None:
    assert read(None, text) == ["uncertain"]


@pytest.mark.parametrize(
    "pattern",
    ["yyyy-MM", "MMM dd yyyy", "yyyy-MM-dd'T", "yyyy-MM-dd[ HH]", "yy-MM-dd", "yyyy-MM-dd HH HH", *JAVAS_OWN],
)
def test_patterns_only_spark_knows(pattern: str) -> None:
    assert FixedTimes.of(pattern) is None


@given(st.lists(st.datetimes(datetime(1583, 1, 1), datetime(9999, 12, 31)), max_size=20))
def test_any_time_is_read_as_it_was_written(moments: list[datetime]) -> None:
    texts = [f"{moment.isoformat()}Z" for moment in moments]
    assert read(None, *texts) == [moment.replace(tzinfo=UTC) for moment in moments]
