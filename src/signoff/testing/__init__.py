"""Testing pipelines: run one over given events, with the engine of a run and without any server.

    from signoff.testing import run_pipeline

    result = run_pipeline("pipeline.yaml", {"incoming": ['{"stationId": 5, "alarmId": 303}', "{broken"]})
    assert result.rows["table"] == [{"stationId": 5, "alarmId": 303}]
    assert result.letters[0].stage == "parsed"

    run_pipeline            one call: the pipeline over the events
    Result, Letter          what came out: rows by node, dead letters, drops, the account
    Event, Answer           an event with headers or a time; what a service answers to an `enrich` step
    Case, run_case, differences   a test of a `tests:` block, and what is not as it expects

For packages that bring types of their own (docs/plugins.md):

    SinkConformance, SourceConformance, TransformConformance   the tests that ours pass as well, for pytest
    MemorySource, MemorySink, received   contracts without anything behind them; all that a source gives

The same tests can stand in the pipeline file, for `signoff test FILE` (docs/testing.md).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from signoff.pipeline.tests_block import Answer, Case, Event
    from signoff.testing.compare import Difference, differences
    from signoff.testing.conformance.sinks import SinkConformance, SinkTarget, SinkTypeConformance
    from signoff.testing.conformance.sources import SourceConformance, SourceOffer
    from signoff.testing.conformance.transforms import TransformConformance, TransformExample
    from signoff.testing.memory import MemorySink, MemorySource, received
    from signoff.testing.running import Letter, Result, run_case, run_pipeline

_PLACES = {
    "signoff.pipeline.tests_block": ("Answer", "Case", "Event"),
    "signoff.testing.compare": ("Difference", "differences"),
    "signoff.testing.memory": ("MemorySink", "MemorySource", "received"),
    "signoff.testing.running": ("Letter", "Result", "run_case", "run_pipeline"),
    "signoff.testing.conformance.sinks": ("SinkConformance", "SinkTarget", "SinkTypeConformance"),
    "signoff.testing.conformance.sources": ("SourceConformance", "SourceOffer"),
    "signoff.testing.conformance.transforms": ("TransformConformance", "TransformExample"),
}
"""Loaded when they are asked for: a test of a sink needs neither Spark nor the engine, and a run no
pytest."""

__all__ = [
    "Answer",
    "Case",
    "Difference",
    "Event",
    "Letter",
    "MemorySink",
    "MemorySource",
    "Result",
    "SinkConformance",
    "SinkTarget",
    "SinkTypeConformance",
    "SourceConformance",
    "SourceOffer",
    "TransformConformance",
    "TransformExample",
    "differences",
    "received",
    "run_case",
    "run_pipeline",
]


def __getattr__(name: str) -> Any:
    for module, names in _PLACES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
