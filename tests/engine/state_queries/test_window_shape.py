"""The state of a window is not left while it holds anything: without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from signoff import load
from signoff.engine.split.boundaries import buffer_place
from signoff.engine.split.division import all_boundaries
from signoff.engine.split.stateful import WindowBoundary
from signoff.engine.state_dir.buffers import give_up
from signoff.engine.state_queries.removed_steps import check_left
from signoff.engine.state_queries.window_query import check_shape, graph_marks, noted_shape
from signoff.errors import PipelineError
from signoff.ledger.ledger import Ledger
from signoff.pipeline.graph import Graph
from signoff.sinks.contract import BatchRef
from signoff.stateful.lost_state import LostState
from signoff.stateful.open_groups import OpenGroups, open_groups_path
from signoff.stateful.watermarks import Seen, Watermarks
from signoff.transforms.window.watermark_rule import WatermarkRule

PIPELINE = """
name: alarms
sources:
  incoming: {type: files, path: "./in/*.jsonl"}
transforms:
  counts: {type: window, input: incoming, size: 10m, aggregates: {n: count(*)}}
sinks:
  table: {type: sqlite, input: counts, path: ./out.db, table: alarms}
"""


def boundary_in(tmp_path: Path, more: str = "") -> tuple[Graph, WindowBoundary]:
    file = tmp_path / "alarms.yaml"
    file.write_text(PIPELINE.replace("count(*)}", "count(*)}" + more))
    graph = load(file)
    return next(
        (part, boundary) for part, boundary in all_boundaries(graph) if isinstance(boundary, WindowBoundary)
    )


@pytest.mark.parametrize(("closed_upto", "given"), [(500, 500), (1000, 0)])
def test_another_form_is_refused_while_windows_are_open_or_their_results_not_given_out(
    tmp_path: Path, closed_upto: int, given: int
) -> None:
    graph, boundary = boundary_in(tmp_path)
    marks = Watermarks(graph_marks(graph, boundary.source), WatermarkRule(0), ("incoming",))
    marks.begin('{"columns": "another"}')
    marks.saw(BatchRef("incoming", 0, 1), Seen(0, (), 1000))
    marks.reach(closed_upto)
    marks.gave(given)
    with pytest.raises(PipelineError, match=r"state-changed"):
        check_shape(graph, boundary, "columns")
    marks.reach(1000)
    marks.gave(1000)
    check_shape(graph, boundary, "columns")
    marks.close_store()


@pytest.mark.parametrize(
    ("before", "now", "lost"),
    [("closed", "updates", True), ("updates", "closed", False), ("updates", "updates", False)],
)
def test_open_windows_are_not_left_to_updates_that_may_never_come(
    tmp_path: Path, before: str, now: str, lost: bool
) -> None:
    graph, boundary = boundary_in(tmp_path, f", emit: {before}")
    marks = Watermarks(graph_marks(graph, boundary.source), WatermarkRule(0), ("incoming",))
    marks.begin(noted_shape(boundary.window, "columns"))
    marks.saw(BatchRef("incoming", 0, 1), Seen(0, (), 1000))
    graph, boundary = boundary_in(tmp_path, f", emit: {now}")
    if lost:
        with pytest.raises(PipelineError, match=r'state-changed.*another "emit".*idle_after'):
            check_shape(graph, boundary, "columns")
        marks.reach(1000)
        marks.gave(1000)
    check_shape(graph, boundary, "columns")
    marks.close_store()


WINDOW = "counts: {type: window, input: incoming, size: 10m, aggregates: {n: count(*)}}"


@pytest.mark.case(44)
@pytest.mark.parametrize(
    "now",
    [
        PIPELINE.replace("transforms:", "").replace(WINDOW, "").replace("input: counts", "input: incoming"),
        PIPELINE.replace("counts", "tally"),
        PIPELINE.replace(WINDOW, "counts: {type: select, input: incoming, columns: {a: payload}}"),
    ],
    ids=["removed", "renamed", "another type"],
)
def test_a_window_that_was_removed_or_became_another_step_is_not_left_while_it_is_open(
    tmp_path: Path, now: str
) -> None:
    graph, boundary = boundary_in(tmp_path)
    marks = Watermarks(graph_marks(graph, boundary.source), WatermarkRule(0), ("incoming",))
    marks.begin(noted_shape(boundary.window, "columns"))
    marks.saw(BatchRef("incoming", 0, 1), Seen(0, (), 1000))
    check_left(graph)
    (tmp_path / "alarms.yaml").write_text(now)
    graph = load(tmp_path / "alarms.yaml")
    with pytest.raises(PipelineError, match=r"state-left.*open windows.*signoff buffers drop FILE counts"):
        check_left(graph)
    with Ledger(tmp_path / "ledger.db") as ledger:
        assert give_up(graph, ledger, "counts") == 0
    check_left(graph)
    graph, boundary = boundary_in(tmp_path)
    check_left(graph)
    assert LostState(buffer_place(graph, boundary.source)).given_up == 0, "the old state is not gone on with"
    marks.close_store()


@pytest.mark.case(44)
def test_a_fold_that_was_removed_is_not_left_while_groups_are_open(tmp_path: Path) -> None:
    graph, _ = boundary_in(tmp_path)
    place = buffer_place(graph, "orders.buffer")
    groups = OpenGroups(open_groups_path(place))
    groups.begin("{}")
    groups.note(0, {5: 2})
    with pytest.raises(PipelineError, match=r"state-left.*2 open groups"):
        check_left(graph)
    with Ledger(tmp_path / "ledger.db") as ledger:
        give_up(graph, ledger, "orders")
    check_left(graph)
    groups.close_store()
