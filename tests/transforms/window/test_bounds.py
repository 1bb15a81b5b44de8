"""Every time is in the windows Spark would put it in, and only in those that are open."""

from __future__ import annotations

import numpy as np
import pytest

from signoff.transforms.window.bounds import Panes

SECOND = 1_000_000


def windows(panes: Panes, moment: int) -> set[int]:
    """The starts of all windows a time is in, one by one."""
    first = (moment - panes.size) // panes.every * panes.every
    starts = range(first - panes.every, moment + panes.every, panes.every)
    return {start for start in starts if start <= moment < start + panes.size}


@pytest.mark.parametrize("size, every", [(10, 10), (60, 10), (60, 25), (7, 3), (1, 1)])
@pytest.mark.parametrize("closed", [None, 400_000_000, 460_500_000])
def test_a_time_is_in_all_its_open_windows(size: int, every: int, closed: int | None) -> None:
    panes = Panes(size * SECOND, every * SECOND)
    times = np.random.default_rng(size + every).integers(380 * SECOND, 500 * SECOND, 500)
    places, starts = panes.spread(times, closed)
    found: dict[int, list[int]] = {}
    for place, start in zip(places.tolist(), starts.tolist(), strict=True):
        found.setdefault(place, []).append(start)
    for place, moment in enumerate(times.tolist()):
        expected = {s for s in windows(panes, moment) if closed is None or s + panes.size > closed}
        assert sorted(found.get(place, [])) == sorted(expected)


@pytest.mark.parametrize("size, every", [(10, 10), (60, 10), (60, 25), (7, 3)])
def test_sql_finds_the_first_and_the_last_window(size: int, every: int) -> None:
    panes = Panes(size * SECOND, every * SECOND)
    for moment in range(380 * SECOND, 400 * SECOND, 777_777):
        ends = {start + panes.size for start in windows(panes, moment)}
        scope = {"pmod": lambda a, b: a % b, "t": moment}
        assert eval(panes.last_end("t"), scope) == max(ends)
        assert eval(panes.first_end("t"), scope) == min(ends)
