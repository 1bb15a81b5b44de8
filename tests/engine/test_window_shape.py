"""The state of a window is not left while it holds anything: without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from signoff import load
from signoff.engine.division import all_joints
from signoff.engine.joints import WindowJoint
from signoff.engine.windows import check_shape, graph_marks
from signoff.errors import PipelineError
from signoff.pipeline.graph import Graph
from signoff.sinks.contract import BatchRef
from signoff.state.marks import Marks, Progress, Seen

PIPELINE = """
name: alarms
sources:
  incoming: {type: files, path: "./in/*.jsonl"}
transforms:
  counts: {type: window, input: incoming, size: 10m, aggregates: {n: count(*)}}
sinks:
  table: {type: sqlite, input: counts, path: ./out.db, table: alarms}
"""


def joint_in(tmp_path: Path) -> tuple[Graph, WindowJoint]:
    file = tmp_path / "alarms.yaml"
    file.write_text(PIPELINE)
    graph = load(file)
    return next((part, joint) for part, joint in all_joints(graph) if isinstance(joint, WindowJoint))


@pytest.mark.parametrize(("closed_upto", "given"), [(500, 500), (1000, 0)])
def test_another_form_is_refused_while_windows_are_open_or_their_results_not_given_out(
    tmp_path: Path, closed_upto: int, given: int
) -> None:
    graph, joint = joint_in(tmp_path)
    marks = Marks(graph_marks(graph, joint.source), Progress(0), ("incoming",))
    marks.begin('{"columns": "another"}')
    marks.saw(BatchRef("incoming", 0, 1), Seen(0, (), 1000))
    marks.reach(closed_upto)
    marks.gave(given)
    with pytest.raises(PipelineError, match="state-changed"):
        check_shape(graph, joint, "columns")
    marks.reach(1000)
    marks.gave(1000)
    check_shape(graph, joint, "columns")
    marks.close_store()
