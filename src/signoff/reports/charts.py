"""Bar and line charts that are understood at a glance, as a scene of shapes.

What each has: a title that says something, the axes' names and units in one line below it, bars that begin at
zero, round numbers on the axis, a legend only where there are several series. Names that do not fit below
bars make the bars lie: then there is room for them at the left.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import Any

from signoff.reports.axes import decimals_of_step, seconds, ticks, time_ticks
from signoff.reports.model import Chart
from signoff.reports.scene import (
    COLOURS,
    DASHES,
    FAINT,
    GRID,
    INK,
    MARKERS,
    Label,
    Line,
    Rectangle,
    Scene,
    marker,
    shortened,
    text_width,
)
from signoff.reports.texts import local, number, shown

WIDTH, HEIGHT = 500.0, 230.0
_SMALL, _TITLE = 7.5, 10.0
_RIGHT = 14.0
_BAR = 15.0
"""Height of a bar that lies, with its gap."""
_MOST_MARKERS = 40
_MOST_NUMBERS = 12
"""Standing bars up to this many have their number above them."""


def draw(chart: Chart, zone: tzinfo) -> Scene:
    """The chart as a picture; one without any number says so."""
    scene = Scene(WIDTH, HEIGHT)
    top = _head(scene, chart)
    if chart.empty:
        scene.height = top + 30
        scene.add(Label(0, top + 16, "No rows.", 9.0, colour=FAINT))
    elif chart.kind == "line":
        _lines(scene, chart, zone, top)
    elif lies(chart, zone):
        _lying_bars(scene, chart, zone, top)
    else:
        _standing_bars(scene, chart, zone, top)
    if chart.note:
        scene.height += 12
        scene.add(Label(0, scene.height - 3, chart.note + ".", _SMALL, colour=FAINT))
    return scene


def caption(chart: Chart) -> str:
    """What the axes show, with units: `Failures (per hour) by day`."""
    y = chart.y.heading if chart.y.title else chart.y.unit
    return f"{y}, by {chart.x.title[:1].lower() + chart.x.title[1:]}" if y else f"By {chart.x.title.lower()}"


def labels(chart: Chart, zone: tzinfo) -> list[str]:
    return [shown(place, chart.x, zone) for place in chart.places]


def _head(scene: Scene, chart: Chart) -> float:
    scene.add(Label(0, _TITLE, shortened(chart.title, _TITLE, WIDTH), _TITLE, bold=True))
    scene.add(Label(0, _TITLE + 12, shortened(caption(chart), 8.0, WIDTH), 8.0, colour=FAINT))
    top = _TITLE + 20
    if len(chart.series) < 2:
        return top
    x = 0.0
    for place, series in enumerate(chart.series):
        name = shortened(series.name, _SMALL, WIDTH / 3)
        if x and x + 26 + text_width(name, _SMALL) > WIDTH:
            x, top = 0.0, top + 12
        if chart.kind == "line":
            scene.add(Line(((x, top + 4), (x + 20, top + 4)), COLOURS[place], 1.4, DASHES[place]))
            scene.add(marker(MARKERS[place], x + 10, top + 4, COLOURS[place]))
        else:
            scene.add(Rectangle(x + 4, top, 12, 8, COLOURS[place]))
        scene.add(Label(x + 24, top + 7, name, _SMALL))
        x += 34 + text_width(name, _SMALL)
    return top + 16


def lies(chart: Chart, zone: tzinfo) -> bool:
    """Whether the bars of a chart lie, because the names do not fit below them."""
    if chart.x.kind in ("date", "time"):
        return False
    room = (WIDTH - 60) / max(len(chart.places), 1)
    return any(text_width(text, _SMALL) > room for text in labels(chart, zone))


@dataclass(frozen=True)
class _Scale:
    """From numbers to points."""

    low: float
    high: float
    at_low: float
    at_high: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / ((self.high - self.low) or 1.0)
        return self.at_low + share * (self.at_high - self.at_low)


def _extent(chart: Chart) -> tuple[float, float]:
    values = [value for one in chart.series for value in one.values if value is not None]
    if chart.stacked:
        values = [total for i in range(len(chart.places)) for total in _stack(chart, i)]
    low, high = min(values), max(values)
    if chart.kind == "bar" or 0 <= low <= high / 2 or high / 2 <= high <= 0:
        low, high = min(low, 0.0), max(high, 0.0)
    return low, high


def _stack(chart: Chart, place: int) -> tuple[float, float]:
    values = [series.values[place] or 0.0 for series in chart.series]
    return sum(v for v in values if v < 0), sum(v for v in values if v > 0)


def _mark_texts(marks: list[float]) -> list[str]:
    return [number(mark, decimals_of_step(marks)) for mark in marks]


def _y_axis(scene: Scene, chart: Chart, top: float, bottom: float) -> tuple[_Scale, float]:
    """Grid and numbers; returns the scale, and where the plot begins."""
    marks = ticks(*_extent(chart), most=5)
    texts = _mark_texts(marks)
    left = max(text_width(text, _SMALL) for text in texts) + 6
    scale = _Scale(marks[0], marks[-1], bottom, top)
    for mark, text in zip(marks, texts, strict=True):
        y = scale(mark)
        zero = mark == 0 or mark == marks[0] > 0
        scene.add(Line(((left, y), (WIDTH - _RIGHT, y)), INK if zero else GRID, 0.8 if zero else 0.5))
        scene.add(Label(left - 4, y + 2.6, text, _SMALL, "end"))
    return scale, left


def _standing_bars(scene: Scene, chart: Chart, zone: tzinfo, top: float) -> None:
    bottom = HEIGHT - 18
    scale, left = _y_axis(scene, chart, top + 8, bottom)
    room = (WIDTH - _RIGHT - left) / len(chart.places)
    side_by_side = 1 if chart.stacked else len(chart.series)
    width = min(room * 0.8 / side_by_side, 40.0)
    texts = labels(chart, zone)
    every = _every(texts, room)
    for place, text in enumerate(texts):
        middle = left + room * (place + 0.5)
        for bar, low, high, index in _bars(chart, place):
            x = middle + width * (bar - side_by_side / 2)
            y, height = min(scale(low), scale(high)), abs(scale(high) - scale(low))
            scene.add(Rectangle(x, y, width * 0.94, height, COLOURS[index]))
            if len(chart.series) == 1 and len(texts) <= _MOST_NUMBERS:
                says = number(high if high else low, chart.y.decimals)
                scene.add(Label(x + width * 0.47, y - 3, says, _SMALL, "middle"))
        if place % every == 0:
            scene.add(Label(middle, bottom + 11, text, _SMALL, "middle"))


def _lying_bars(scene: Scene, chart: Chart, zone: tzinfo, top: float) -> None:
    texts = labels(chart, zone)
    widest = WIDTH * 0.4
    left = min(max(text_width(text, _SMALL) for text in texts) + 8, widest)
    per_place = _BAR if chart.stacked or len(chart.series) == 1 else 9.0 * len(chart.series) + 5
    bottom = top + per_place * len(texts)
    marks = ticks(*_extent(chart), most=6)
    right = WIDTH - _RIGHT - (34 if len(chart.series) == 1 else 6)
    scale = _Scale(marks[0], marks[-1], left, right)
    for mark, text in zip(marks, _mark_texts(marks), strict=True):
        x, zero = scale(mark), mark == 0
        scene.add(Line(((x, top), (x, bottom)), INK if zero else GRID, 0.8 if zero else 0.5))
        scene.add(Label(x, bottom + 10, text, _SMALL, "middle"))
    thick = (per_place - 4) / (1 if chart.stacked else len(chart.series))
    for place, text in enumerate(texts):
        y = top + per_place * place + 2
        says = shortened(text, _SMALL, left - 8)
        scene.add(Label(left - 5, y + (per_place - 4) / 2 + 2.6, says, _SMALL, "end"))
        for bar, low, high, index in _bars(chart, place):
            x, width = min(scale(low), scale(high)), abs(scale(high) - scale(low))
            scene.add(Rectangle(x, y + bar * thick, width, thick * 0.94, COLOURS[index]))
            if len(chart.series) == 1:
                value = number(high if high else low, chart.y.decimals)
                scene.add(Label(x + width + 4, y + thick / 2 + 2.6, value, _SMALL))
    scene.height = bottom + 16


def _bars(chart: Chart, place: int) -> list[tuple[int, float, float, int]]:
    """The bars of a place: which of those side by side, from where to where, and whose."""
    found: list[tuple[int, float, float, int]] = []
    below = above = 0.0
    for index, series in enumerate(chart.series):
        if (value := series.values[place]) is None:
            continue
        if not chart.stacked:
            found.append((index, min(value, 0.0), max(value, 0.0), index))
        elif value < 0:
            found.append((0, below + value, below, index))
            below += value
        else:
            found.append((0, above, above + value, index))
            above += value
    return found


def _lines(scene: Scene, chart: Chart, zone: tzinfo, top: float) -> None:
    bottom = HEIGHT - 18
    scale, left = _y_axis(scene, chart, top + 8, bottom)
    at = _positions(chart, zone)
    across = _Scale(min(at), max(at), left + 8, WIDTH - _RIGHT - 8)
    middle = (left + WIDTH - _RIGHT) / 2
    places = [across(x) if max(at) > min(at) else middle for x in at]
    for x, text in _x_marks(chart, zone, at):
        where = across(x) if max(at) > min(at) else middle
        scene.add(Line(((where, bottom), (where, bottom + 3)), INK, 0.6))
        scene.add(Label(where, bottom + 12, text, _SMALL, "middle"))
    for index, series in enumerate(chart.series):
        for run in _runs(places, series.values):
            points = tuple((x, scale(value)) for x, value in run)
            if len(points) > 1:
                scene.add(Line(points, COLOURS[index], 1.4, DASHES[index]))
            if len(chart.places) <= _MOST_MARKERS or len(points) == 1:
                scene.add(*(marker(MARKERS[index], x, y, COLOURS[index]) for x, y in points))


def _positions(chart: Chart, zone: tzinfo) -> list[float]:
    if chart.x.kind in ("date", "time"):
        return [seconds(_local(place, zone)) for place in chart.places]
    if chart.x.is_number:
        return [float(place) for place in chart.places]
    return [float(index) for index in range(len(chart.places))]


def _x_marks(chart: Chart, zone: tzinfo, at: list[float]) -> list[tuple[float, str]]:
    low, high = min(at), max(at)
    if chart.x.kind in ("date", "time"):
        return time_ticks(low, high)
    texts = labels(chart, zone)
    if chart.x.is_number and len(at) > 12:
        marks = [mark for mark in ticks(low, high) if low <= mark <= high]
        return list(zip(marks, _mark_texts(marks), strict=True))
    every = _every(texts, (WIDTH - 60) / len(texts))
    return [(x, text) for index, (x, text) in enumerate(zip(at, texts, strict=True)) if index % every == 0]


def _local(place: Any, zone: tzinfo) -> Any:
    return local(place, zone) if isinstance(place, datetime) else place


def _every(texts: list[str], room: float) -> int:
    """Only every n-th text fits."""
    widest = max(text_width(text, _SMALL) for text in texts) + 6
    return max(1, int(-(-widest // room)))


def _runs(places: list[float], values: tuple[float | None, ...]) -> list[list[tuple[float, float]]]:
    """A line has a gap where there is no value: nothing is made up in between."""
    runs: list[list[tuple[float, float]]] = [[]]
    for x, value in zip(places, values, strict=True):
        if value is not None:
            runs[-1].append((x, value))
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]
