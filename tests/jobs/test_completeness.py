"""A run never claims more than its tables say."""

from __future__ import annotations

import pytest

from signoff.jobs.completeness import least


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ([], None),
        (["2021-05-01T10:00:00Z"], "2021-05-01T10:00:00Z"),
        (["any text"], "any text"),
        (["2021-05-01T10:00:00Z", None], None),  # the other table is empty
        (["10", "9"], "9"),
        (["10.5", "9"], "9"),
        (["20210502", "9"], "9"),
        (["2021-05-01T10:00:00Z", "2021-05-01 23:00:00+00"], "2021-05-01T10:00:00Z"),
        (["2021-05-01T23:00:00Z", "2021-05-01 10:00:00.5"], "2021-05-01 10:00:00.5"),
        (["2021-05-01T10:00:00+03:00", "2021-05-01 08:00:00"], "2021-05-01T10:00:00+03:00"),
        (["2021-05-02", "2021-05-01 23:00:00+00"], "2021-05-01 23:00:00+00"),
        (["2021-05-02", "2021-05-02 01:00:00+00"], "2021-05-02"),
        (["infinity", "2021-05-02 01:00:00+00"], None),
        (["NaN", "7"], None),
        (["week 9", "week 10"], None),
        (["week 9", "week 9"], "week 9"),
    ],
)
def test_the_least_that_all_tables_say(said: list[str | None], found: str | None) -> None:
    assert least(said) == found
    assert least(said[::-1]) == found
