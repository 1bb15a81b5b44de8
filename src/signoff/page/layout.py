"""Where the nodes of a graph stand and how their edges run: in ranks, each behind all it reads.

Edges run through every rank between their ends, so that none crosses a box. The order within a rank is that
of the least crossings which a few sweeps find: a pipeline has tens of nodes, not thousands.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

Edge = tuple[str, str]
Point = tuple[float, float]

_SWEEPS = 8


@dataclass(frozen=True)
class Form:
    """How large boxes are, and how far from each other; `along` is the way that rows take."""

    width: float
    height: float
    along: float
    across: float
    vertical: bool = False
    margin: float = 12.0


WIDE = Form(width=190, height=74, along=76, across=26)
"""From left to right, for a screen that is wider than it is high."""
NARROW = Form(width=150, height=74, along=46, across=14, vertical=True, margin=4)
"""From top to bottom, for a phone: two boxes beside each other."""


@dataclass(frozen=True)
class Drawing:
    """Boxes by their upper left corners, and edges as the points that they run through."""

    width: float
    height: float
    boxes: dict[str, Point]
    edges: dict[Edge, list[Point]]


def lay_out(nodes: Sequence[str], edges: Sequence[Edge], form: Form) -> Drawing:
    """Draw a graph; `nodes` each after those it reads."""
    ranks, chains = _ranks(nodes, edges)
    places = _places(_ordered(ranks, chains), chains, form)
    length, breadth = (form.height, form.width) if form.vertical else (form.width, form.height)
    size_across = max(places.values()) + breadth / 2 + form.margin
    size_along = 2 * form.margin + len(ranks) * length + (len(ranks) - 1) * form.along
    rank_of = {name: index for index, rank in enumerate(ranks) for name in rank}

    def start(name: str) -> float:
        return form.margin + rank_of[name] * (length + form.along)

    def point(along: float, across: float) -> Point:
        return (across, along) if form.vertical else (along, across)

    boxes = {name: point(start(name), places[name] - breadth / 2) for name in nodes}
    drawn = {}
    for edge, chain in chains.items():
        ends = [point(start(chain[0]) + length, places[chain[0]])]
        for name in chain[1:-1]:
            ends += [point(start(name), places[name]), point(start(name) + length, places[name])]
        drawn[edge] = [*ends, point(start(chain[-1]), places[chain[-1]])]
    width, height = (size_across, size_along) if form.vertical else (size_along, size_across)
    return Drawing(width, height, boxes, drawn)


def path_of(points: Sequence[Point], *, vertical: bool) -> str:
    """An edge as an SVG path: curves that leave and reach boxes at a right angle."""
    parts = [f"M{points[0][0]:.0f} {points[0][1]:.0f}"]
    for (x1, y1), (x2, y2) in pairwise(points):
        if vertical:
            half = (y1 + y2) / 2
            parts.append(f"C{x1:.0f} {half:.0f} {x2:.0f} {half:.0f} {x2:.0f} {y2:.0f}")
        else:
            half = (x1 + x2) / 2
            parts.append(f"C{half:.0f} {y1:.0f} {half:.0f} {y2:.0f} {x2:.0f} {y2:.0f}")
    return "".join(parts)


def _ranks(nodes: Sequence[str], edges: Sequence[Edge]) -> tuple[list[list[str]], dict[Edge, list[str]]]:
    """Names by rank, with a name of its own for each rank that an edge runs through; and these by edge."""
    rank = dict.fromkeys(nodes, 0)
    inputs: dict[str, list[str]] = defaultdict(list)
    for source, target in edges:
        inputs[target].append(source)
    for name in nodes:
        rank[name] = max((rank[source] + 1 for source in inputs[name]), default=0)
    ranks: list[list[str]] = [[] for _ in range(max(rank.values(), default=0) + 1)]
    for name in nodes:
        ranks[rank[name]].append(name)
    chains = {}
    for source, target in dict.fromkeys(edges):
        between = [f"{source}\0{target}\0{number}" for number in range(rank[source] + 1, rank[target])]
        for number, name in enumerate(between, rank[source] + 1):
            ranks[number].append(name)
        chains[source, target] = [source, *between, target]
    return ranks, chains


def _ordered(ranks: list[list[str]], chains: Mapping[Edge, list[str]]) -> list[list[str]]:
    before, after = _neighbours(chains)
    for sweep in range(_SWEEPS):
        forth = sweep % 2 == 0
        rows = ranks if forth else ranks[::-1]
        for fixed, moved in pairwise(rows):
            at = {name: index for index, name in enumerate(fixed)}
            of = before if forth else after
            now = {name: float(index) for index, name in enumerate(moved)}
            moved.sort(key=lambda name, of=of, at=at, now=now: _mean([at[x] for x in of[name]], now[name]))  # type: ignore[misc]
    return ranks


def _places(ranks: list[list[str]], chains: Mapping[Edge, list[str]], form: Form) -> dict[str, float]:
    """The middle of each box across the way: near to the middles of its neighbours, in the order of its
    rank."""
    step = (form.width if form.vertical else form.height) + form.across
    before, after = _neighbours(chains)
    places = {name: index * step for rank in ranks for index, name in enumerate(rank)}
    for sweep in range(2 * _SWEEPS):
        of = (before, after)[sweep % 2]
        for rank in ranks if sweep % 2 == 0 else ranks[::-1]:
            wanted = [_mean([places[x] for x in of[name]], places[name]) for name in rank]
            _spread(rank, wanted, places, step)
    least = min(places.values())
    first = form.margin + (form.width if form.vertical else form.height) / 2
    return {name: place - least + first for name, place in places.items()}


def _spread(rank: list[str], wanted: list[float], places: dict[str, float], step: float) -> None:
    """In order, at least a step from each other, and on average where they want to be."""
    found: list[float] = []
    for place in wanted:
        found.append(max(place, found[-1] + step) if found else place)
    shift = sum(wanted) / len(wanted) - sum(found) / len(found) if found else 0.0
    places.update({name: place + shift for name, place in zip(rank, found, strict=True)})


def _neighbours(chains: Mapping[Edge, list[str]]) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    before: dict[str, list[str]] = defaultdict(list)
    after: dict[str, list[str]] = defaultdict(list)
    for chain in chains.values():
        for source, target in pairwise(chain):
            before[target].append(source)
            after[source].append(target)
    return before, after


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise
