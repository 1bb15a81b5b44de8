"""A drawing as a list of simple shapes, which the PDF and the HTML form both know how to draw.

Points; the origin is the upper left corner, as in SVG.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

INK, FAINT, GRID = "#222222", "#666666", "#d9d9d9"
COLOURS = ("#17365d", "#e0a030", "#a03a26", "#b7d2e8", "#6d93b8")
"""Of series, in this order. Their lightness differs by 10 of 100 or more, so that they are told apart
in grey as well, and by those who do not see colours."""
DASHES: tuple[tuple[float, ...], ...] = ((), (6, 2), (2, 2), (8, 2, 2, 2), (1, 2))
"""Of the lines of these series: the same in grey."""
Anchor = Literal["start", "middle", "end"]
Marker = Literal["circle", "square", "diamond", "triangle", "cross"]
MARKERS: tuple[Marker, ...] = ("circle", "square", "diamond", "triangle", "cross")


@dataclass(frozen=True)
class Rectangle:
    x: float
    y: float
    width: float
    height: float
    fill: str


@dataclass(frozen=True)
class Line:
    points: tuple[tuple[float, float], ...]
    colour: str = INK
    width: float = 0.7
    dash: tuple[float, ...] = ()


@dataclass(frozen=True)
class Polygon:
    points: tuple[tuple[float, float], ...]
    fill: str


@dataclass(frozen=True)
class Label:
    x: float
    y: float
    """Of the base line."""
    text: str
    size: float = 8.0
    anchor: Anchor = "start"
    bold: bool = False
    colour: str = INK


Shape = Rectangle | Line | Polygon | Label


@dataclass
class Scene:
    width: float
    height: float
    shapes: list[Shape] = field(default_factory=list)

    def add(self, *shapes: Shape) -> None:
        self.shapes += shapes


def text_width(text: str, size: float) -> float:
    """About how wide a text is, on the safe side: the fonts of the forms differ."""
    return sum(_width(sign) for sign in text) * size


def _width(sign: str) -> float:
    if sign in "iljI.,:;|'!()[] ":
        return 0.38
    if sign in "mwMW@%":
        return 0.95
    if ord(sign) > 0x2E80:  # scripts of the Far East, symbols
        return 1.0
    return 0.72 if sign.isupper() else 0.62


def shortened(text: str, size: float, width: float) -> str:
    """A text cut so that it fits, with a sign that it was."""
    most = int(width / size / 0.38) + 1  # signs that fit at best: a text may be very long
    if len(text) <= most and text_width(text, size) <= width:
        return text
    text = text[:most]
    while text and text_width(text + "…", size) > width:
        text = text[:-1]
    return text.rstrip() + "…"


def marker(kind: Marker, x: float, y: float, colour: str, r: float = 2.4) -> Polygon:
    outlines: dict[Marker, list[tuple[float, float]]] = {
        "circle": [(1, 0), (0.7, 0.7), (0, 1), (-0.7, 0.7), (-1, 0), (-0.7, -0.7), (0, -1), (0.7, -0.7)],
        "square": [(0.9, 0.9), (-0.9, 0.9), (-0.9, -0.9), (0.9, -0.9)],
        "diamond": [(1.2, 0), (0, 1.2), (-1.2, 0), (0, -1.2)],
        "triangle": [(0, -1.2), (1.1, 0.9), (-1.1, 0.9)],
        "cross": [
            (0.4, 1.1), (-0.4, 1.1), (-0.4, 0.4), (-1.1, 0.4), (-1.1, -0.4), (-0.4, -0.4),
            (-0.4, -1.1), (0.4, -1.1), (0.4, -0.4), (1.1, -0.4), (1.1, 0.4), (0.4, 0.4),
        ],
    }  # fmt: skip
    return Polygon(tuple((x + r * dx, y + r * dy) for dx, dy in outlines[kind]), colour)
