"""States that hold events, of steps that are no longer in the pipeline.

Events in an open window or group may be acknowledged already: if its step was renamed or removed, or became
another one, they would be in no result, without a word. Such a pipeline is refused.
"""

from __future__ import annotations

from collections.abc import Iterator

from signoff.engine.division import all_joints, buffers_on_disk
from signoff.engine.joints import FoldJoint, WindowJoint, buffer_place
from signoff.errors import PipelineError, Problem
from signoff.ledger.outcome import BUFFER
from signoff.link.handover import LinkPlace
from signoff.pipeline.graph import Graph
from signoff.state.loss import Loss
from signoff.state.marks import Marks, Progress
from signoff.state.open_groups import OpenGroups, open_groups_path
from signoff.state.windowing import marks_path


def check_left(graph: Graph) -> None:
    """Raises PipelineError for states that hold events and are no step's."""
    problems = [
        Problem(
            "state-left",
            f'the step "{name}" is not in the pipeline, or is another one, but its state holds {what}',
            "put it back and let them end: run the pipeline as it was (a window with idle_after: 1s); "
            f"or give them up: signoff buffers drop FILE {name}",
            graph.file,
        )
        for name, what in left_states(graph)
    ]
    if problems:
        raise PipelineError(problems)


def left_states(graph: Graph) -> Iterator[tuple[str, str]]:
    """The names of steps whose states were left, and what they hold."""
    joints = {joint.name: joint for _, joint in all_joints(graph)}
    for name in buffers_on_disk(graph):
        place, joint = buffer_place(graph, name + BUFFER), joints.get(name)
        if not isinstance(joint, WindowJoint) and _holds_windows(place):
            yield name, "open windows"
        elif not isinstance(joint, FoldJoint) and (number := _open_groups(place)):
            yield name, f"{number} open group{'' if number == 1 else 's'}"


def give_up_left(place: LinkPlace, taken: int) -> None:
    """Give up what a state holds that was left. `taken`: up to where rows were taken into it."""
    windows, groups = _holds_windows(place), _open_groups(place)
    if not windows and not groups:
        return
    loss = Loss(place)
    loss.note(taken)
    loss.give_up()  # before the notes are changed: a step that is put back must not go on with the old state
    if windows:
        marks = Marks(marks_path(place), Progress(0), ())
        marks.give_up()
        marks.close_store()
    if groups:
        open_groups = OpenGroups(open_groups_path(place))
        open_groups.forget()
        open_groups.close_store()


def _holds_windows(place: LinkPlace) -> bool:
    if not marks_path(place).exists():
        return False
    marks = Marks(marks_path(place), Progress(0), (), readonly=True)
    try:
        return marks.holds_events
    finally:
        marks.close_store()


def _open_groups(place: LinkPlace) -> int:
    if not open_groups_path(place).exists():
        return 0
    groups = OpenGroups(open_groups_path(place), readonly=True)
    try:
        return groups.number
    finally:
        groups.close_store()
