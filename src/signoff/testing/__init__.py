"""Testing pipelines: run one over given events, with the engine of a run and without any server.

    from signoff.testing import run_pipeline

    result = run_pipeline("pipeline.yaml", {"incoming": ['{"stationId": 5, "alarmId": 303}', "{broken"]})
    assert result.rows["table"] == [{"stationId": 5, "alarmId": 303}]
    assert result.letters[0].stage == "parsed"

    run_pipeline            one call: the pipeline over the events
    Result, Letter          what came out: rows by node, dead letters, drops, the account
    Event, Answer           an event with headers or a time; what a service answers to an `enrich` step
    Case, run_case, differences   a test of a `tests:` block, and what is not as it expects

The same tests can stand in the pipeline file, for `signoff test FILE` (docs/testing.md).
"""

from __future__ import annotations

from signoff.pipeline.cases import Answer, Case, Event
from signoff.testing.compare import Difference, differences
from signoff.testing.running import Letter, Result, run_case, run_pipeline

__all__ = [
    "Answer",
    "Case",
    "Difference",
    "Event",
    "Letter",
    "Result",
    "differences",
    "run_case",
    "run_pipeline",
]
