"""How long a sink is let alone that has taken nothing of a batch."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from signoff.batch import BatchRef
from signoff.engine.batch import waits as module
from signoff.engine.batch.interrupts import Interrupts
from signoff.engine.batch.waits import Waits
from signoff.ledger.batch_state import OwesAll
from signoff.pipeline.model import Retry

BATCH = BatchRef("incoming", 0, 10)


def test_a_sink_that_was_away_for_a_moment_is_asked_soon_however_slow_the_machine_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A pass that takes seconds is not done again all the time: but the waits grow, they do not jump."""
    now = 100.0
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    config = SimpleNamespace(retry=Retry(initial_ms=100, max_ms=30_000))
    sinks: Any = {"out": SimpleNamespace(config=config)}
    of_sinks = Waits(tmp_path, sinks, {}, Interrupts())
    waits = []
    for attempt in range(1, 9):
        state = OwesAll(attempts=attempt, error="503", since=1.0)
        waits.append(of_sinks.wait_s(BATCH, "out", state, took_s=3.0))
        now += waits[-1] + 3.0
    assert waits[0] <= 0.1 and waits[1] < 4 and waits[2] < 10, waits
    assert waits[-1] == 30, "in the end it is let alone for as long as may be"
    assert of_sinks.wait_s(BATCH, "out", state, took_s=0.1) < 30
