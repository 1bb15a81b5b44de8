"""Any graph is drawn without boxes over each other or edges through boxes, in both forms."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signoff.page.layout import NARROW, WIDE, Edge, Form, lay_out, path_of

FORMS = pytest.mark.parametrize("form", [WIDE, NARROW], ids=["wide", "narrow"])


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[str], list[Edge]]:
    """Up to twelve nodes; each but the first few reads one or two of those before it."""
    nodes = [f"n{number}" for number in range(draw(st.integers(1, 12)))]
    sources = draw(st.integers(1, len(nodes)))
    edges: list[Edge] = []
    for index in range(sources, len(nodes)):
        read = draw(st.sets(st.integers(0, index - 1), min_size=1, max_size=2))
        edges += [(nodes[source], nodes[index]) for source in sorted(read)]
    return nodes, edges


@FORMS
@given(graph=graphs())
def test_boxes_do_not_overlap_and_edges_run_forwards_between_them(
    form: Form, graph: tuple[list[str], list[Edge]]
) -> None:
    nodes, edges = graph
    drawn = lay_out(nodes, edges, form)
    for (_, (x1, y1)), (_, (x2, y2)) in combinations(drawn.boxes.items(), 2):
        assert abs(x1 - x2) >= form.width - 0.01 or abs(y1 - y2) >= form.height - 0.01
    for x, y in drawn.boxes.values():
        assert x >= 0 and x + form.width <= drawn.width + 0.01
        assert y >= 0 and y + form.height <= drawn.height + 0.01
    assert set(drawn.edges) == set(edges)
    for points in drawn.edges.values():
        along = [y if form.vertical else x for x, y in points]
        assert along == sorted(along)
        for px, py in points[1:-1]:  # where it passes a rank, no box is
            for x, y in drawn.boxes.values():
                inside = x + 0.01 < px < x + form.width - 0.01 and y + 0.01 < py < y + form.height - 0.01
                assert not inside


def test_edge_that_skips_a_rank_goes_around_what_stands_there() -> None:
    drawn = lay_out(["a", "b", "c"], [("a", "b"), ("b", "c"), ("a", "c")], WIDE)
    assert len(drawn.edges["a", "c"]) == 4
    assert path_of(drawn.edges["a", "b"], vertical=False).startswith("M")
