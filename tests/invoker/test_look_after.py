"""The loop over the sinks of a pipeline that start jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from signoff.intake.control import IntakeControl
from signoff.invoker.__main__ import _look_after
from signoff.invoker.invoker import Invoker


class Steps:
    """Counts them, and fails as it is told."""

    def __init__(self, sink: str, error: Exception | None = None) -> None:
        self.sink, self.error, self.steps, self.stopping = sink, error, 0, False

    def step(self) -> bool:
        self.steps += 1
        if self.error is not None:
            raise self.error
        return False

    def counts(self) -> dict[str, int]:
        return {}


class Rounds:
    """Is over after some."""

    stop_requested = False

    def __init__(self, number: int) -> None:
        self.waits: list[float] = []
        self._number = number

    def over(self, wait: float) -> bool:
        self.waits.append(wait)
        return len(self.waits) > self._number


def test_what_nobody_has_foreseen_of_one_sink_keeps_no_other_waiting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good, rounds = Steps("bad", KeyError("since")), Steps("good"), Rounds(3)
    _look_after(cast("list[Invoker]", [bad, good]), tmp_path, cast("IntakeControl", cast("Any", rounds)))
    assert good.steps == bad.steps == 3
    assert rounds.waits[1:] == [1.0, 1.0, 1.0]  # not as fast as it can
    said = [record.message for record in caplog.records if record.message.startswith('sink "bad"')]
    assert said == ["sink \"bad\": KeyError: 'since'"]
