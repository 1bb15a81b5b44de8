"""States that hold events, of steps that are no longer in the pipeline.

Events in an open window or group may be acknowledged already: if its step was renamed or removed, or became
another one, they would be in no result, without a word. Such a pipeline is refused.
"""

from __future__ import annotations

from collections.abc import Iterator

from signoff.engine.split.boundaries import buffer_place
from signoff.engine.split.division import all_boundaries, buffers_on_disk
from signoff.engine.split.stateful import KINDS_OF_NOTES
from signoff.errors import PipelineError, Problem
from signoff.ledger.outcome import BUFFER
from signoff.link.handover import LinkPlace
from signoff.pipeline.graph import Graph
from signoff.stateful.lost_state import LostState


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
    boundaries = {boundary.name: boundary for _, boundary in all_boundaries(graph)}
    for name in buffers_on_disk(graph):
        place, boundary = buffer_place(graph, name + BUFFER), boundaries.get(name)
        others = (kind for kind in KINDS_OF_NOTES if not isinstance(boundary, kind))
        if what := next(filter(None, (kind.held(place) for kind in others)), ""):
            yield name, what


def give_up_left(place: LinkPlace, taken: int) -> None:
    """Give up what a state holds that was left. `taken`: up to where rows were taken into it."""
    kinds = [kind for kind in KINDS_OF_NOTES if kind.held(place)]
    if not kinds:
        return
    loss = LostState(place)
    loss.note(taken)
    loss.give_up()  # before the notes are changed: a step that is put back must not go on with the old state
    for kind in kinds:
        kind.give_up(place)
