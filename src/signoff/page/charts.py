"""Charts as SVG needs them: lines over time, shares of a bar, a histogram."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log, log10

from signoff.page.history import Series, SettleTimes, Span
from signoff.page.rendering import number, rate, seconds, size

WIDTH, HEIGHT = 560, 120
SPANS: Mapping[Span, str] = {"quarter": "15 minutes", "day": "24 hours"}


@dataclass(frozen=True)
class Chart:
    """One line over time."""

    title: str
    area: str
    line: str
    most: str
    """What the upper edge means."""
    last: str
    span: str
    label: str
    """What a screen reader says."""


@dataclass(frozen=True)
class Share:
    """One part of a bar, from `x` on, of a hundred."""

    word: str
    number: int
    x: float
    width: float


@dataclass(frozen=True)
class Bar:
    """One bar of a histogram."""

    label: str
    number: int
    share: float
    """Of the largest one, of a hundred."""


def line(
    title: str, series: Series, write: Callable[[float], str] = rate, most: float | None = None
) -> Chart:
    """A series as a line with an area below it; `most`: the upper edge, by default a round number."""
    top = most or _round_up(series.most)
    step = WIDTH / max(len(series.values) - 1, 1)
    parts: list[list[tuple[float, float]]] = [[]]
    for index, value in enumerate(series.values):
        if value is None:
            if parts[-1]:
                parts.append([])
        else:
            parts[-1].append((index * step, HEIGHT - min(value / top, 1.0) * (HEIGHT - 6)))
    parts = [part for part in parts if part]
    now = "–" if series.last is None else write(series.last)
    span = SPANS[series.span]
    return Chart(
        title=title,
        area="".join(
            f"M{part[0][0]:.1f} {HEIGHT}{_through(part, 'L')}L{part[-1][0]:.1f} {HEIGHT}Z" for part in parts
        ),
        line="".join(_through(part, "M") for part in parts),
        most=write(top),
        last=now,
        span=span,
        label=f"{title} over the last {span}: now {now}, at most {write(series.most)}",
    )


def shares(counts: Mapping[str, int]) -> list[Share]:
    """The parts of a whole that are there."""
    total, x, found = sum(counts.values()), 0.0, []
    for word, count in counts.items():
        if count:
            width = 100 * count / total
            found.append(Share(word, count, x, width))
            x += width
    return found


def histogram(times: SettleTimes) -> list[Bar]:
    """From the first bucket that has events to the last."""
    buckets = times.buckets()
    filled = [index for index, (_, count) in enumerate(buckets) if count]
    most = max(count for _, count in buckets)
    return [
        Bar(f"≤ {seconds(bound)}" if bound is not None else "longer", count, 100 * count / most)
        for bound, count in buckets[filled[0] : filled[-1] + 1]
    ]


def bytes_line(title: str, series: Series) -> Chart:
    unit = 1024.0 ** int(log(max(series.most, 1.0), 1024))
    return line(title, series, size, _round_up(series.most / unit) * unit)


def count_line(title: str, series: Series) -> Chart:
    return line(title, series, number)


def _through(points: Sequence[tuple[float, float]], first: str) -> str:
    return "".join(f"{'L' if index else first}{x:.1f} {y:.1f}" for index, (x, y) in enumerate(points))


def _round_up(value: float) -> float:
    """To 1, 2 or 5 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10.0 ** ceil(log10(value) - 1)
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value * 0.999)
