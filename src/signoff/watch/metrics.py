"""The metrics of a run, for Prometheus: `signoff run FILE --metrics PORT`.

Read when they are asked for, from the ledger, the logs and what the processes say of themselves; nothing on
the way of an event waits for it. At any moment the values of `signoff_events` of a source add up to
`signoff_events_received_total`, as those of `signoff audit` do: they are read in the same way.

Labels are names of the pipeline and words of a short list. No reason, key, header or payload is in them.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from signoff.intake.settle_times import BOUNDS_S
from signoff.intake.status import read_status as read_intake
from signoff.ledger.dead_letters import DeadLetters
from signoff.ledger.outcome import FINAL
from signoff.log import LogReader
from signoff.pipeline.graph import Graph
from signoff.version import __version__
from signoff.watch.memory import resident_bytes
from signoff.watch.status import read_status
from signoff.watch.status_types import LeftAt

FRESH_S = 1.0
"""Whoever asks more often gets the same again."""

Processes = Callable[[], Mapping[str, int]]
"""The processes of a run by name; those that they have started count with them."""

_G, _C, _H = GaugeMetricFamily, CounterMetricFamily, HistogramMetricFamily
FAMILIES: Mapping[str, tuple[Any, str]] = {
    "signoff_events_received": (_C, "Events in the log of a source."),
    "signoff_events_settled": (_C, "Events that have a final outcome."),
    "signoff_events": (
        _G,
        "What became of all events received, and how many are in flight. Replaying or dropping a dead letter "
        "moves its event to another outcome.",
    ),
    "signoff_oldest_event_in_flight_seconds": (
        _G,
        "Age of the oldest event that is not settled; 0 if there is none.",
    ),
    "signoff_receipt_to_settled_seconds": (
        _H,
        "From the receipt of an event until its source was told what became of it; of the events that the "
        "intake's process has received itself.",
    ),
    "signoff_source_held_back_seconds": (
        _G,
        "For how long a source has been held back, by its intake (no room, too much in flight) or by the "
        "engine (sinks that wait); 0 if it is not.",
    ),
    "signoff_ignored_outcomes": (_C, "Outcomes that came for events settled already."),
    "signoff_log_bytes": (_G, "Size of a source's log."),
    "signoff_sink_rows": (_C, "Rows that a sink has taken."),
    "signoff_sink_failing_seconds": (_G, "For how long a sink has been failing; 0 while it works."),
    "signoff_undelivered_rows": (_C, "Rows that left the pipeline undelivered, by stage and outcome."),
    "signoff_dead_letters": (_G, "Dead letters that are stored."),
    "signoff_buffer_rows": (_G, "Rows that wait in a sink's buffer, or for a window or fold."),
    "signoff_buffer_bytes": (_G, "Size of a buffer on the disk."),
    "signoff_buffer_limit_bytes": (_G, "The most that it may take."),
    "signoff_window_events": (_G, "Events that wait for the results of a window."),
    "signoff_window_late_events": (_C, "Events that came when a window of theirs was closed."),
    "signoff_window_watermark_timestamp_seconds": (_G, "Event time up to which windows are closed."),
    "signoff_fold_open_groups": (_G, "Groups of a fold that are open."),
    "signoff_dedupe_keys": (_G, "Keys that a dedupe remembers."),
    "signoff_dedupe_waiting_duplicates": (_G, "Duplicates that wait for the event they repeat."),
    "signoff_process_resident_memory_bytes": (
        _G,
        "Memory of the processes of a run, each with those it has started (the engine: Java and workers).",
    ),
}
"""All that there are, with what they mean; a counter's name ends in `_total` where it is scraped."""


def registry_of(graph: Graph, processes: Processes) -> CollectorRegistry:
    """A registry with the metrics of one pipeline."""
    registry = CollectorRegistry()
    registry.register(PipelineMetrics(graph, processes))
    return registry


class PipelineMetrics(Collector):
    """Collects them when a scraper asks; several may ask at once."""

    def __init__(self, graph: Graph, processes: Processes) -> None:
        self._graph, self._processes = graph, processes
        self._lock = threading.Lock()
        self._read_at = float("-inf")
        self._last: list[Metric] = []

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            if time.monotonic() - self._read_at >= FRESH_S:
                self._last = self._read()
                self._read_at = time.monotonic()
            return iter(self._last)

    def describe(self) -> list[Metric]:
        """Nothing: the names are known, and registering reads no ledger."""
        return []

    def _read(self) -> list[Metric]:
        found = read_status(self._graph)
        samples = _Samples(self._graph.name)
        for name, source in found["sources"].items():
            _source(samples, name, source)
            self._log(samples, name)
        for name, sink in found["sinks"].items():
            samples.add("signoff_sink_rows", sink["rows"], sink=name)
            samples.add("signoff_sink_failing_seconds", sink["failing_seconds"] or 0.0, sink=name)
        _left(samples, found["left_at"])
        _waiting(samples, found)
        _windows(samples, found["windows"])
        with DeadLetters(self._graph.state / "dead_letters.db", readonly=True) as letters:
            for source_name, stage, number in letters.by_stage():
                samples.add("signoff_dead_letters", number, source=source_name, stage=stage)
        for name, size in resident_bytes(self._processes()).items():
            samples.add("signoff_process_resident_memory_bytes", size, process=name)
        about = {"pipeline": self._graph.name, "version": __version__}
        return [InfoMetricFamily("signoff_pipeline", "The pipeline.", about), *samples.families()]

    def _log(self, samples: _Samples, source: str) -> None:
        log = LogReader(self._graph.state / "log" / source)
        samples.add("signoff_log_bytes", log.size(log.first(), log.head()), source=source)
        status = read_intake(self._graph.state / "intake" / source)
        counts, seconds = (status.settled_after, status.settled_seconds) if status else ((), 0.0)
        if len(counts) != len(BOUNDS_S) + 1:  # nothing yet, or of a version with other bounds
            counts, seconds = [0] * (len(BOUNDS_S) + 1), 0.0
        bounds = [*(f"{bound:g}" for bound in BOUNDS_S), "+Inf"]
        buckets = list(zip(bounds, map(float, accumulate(counts)), strict=True))
        samples.of("signoff_receipt_to_settled_seconds", ["source"]).add_metric(
            [self._graph.name, source], buckets=buckets, sum_value=seconds
        )


class _Samples:
    """Samples by metric, each with the label `pipeline`."""

    def __init__(self, pipeline: str) -> None:
        self._pipeline = pipeline
        self._found: dict[str, Metric] = {}

    def add(self, name: str, value: float, **labels: str) -> None:
        self.of(name, list(labels)).add_metric([self._pipeline, *labels.values()], value)

    def of(self, name: str, labels: list[str]) -> Any:
        if name not in self._found:
            kind, text = FAMILIES[name]
            self._found[name] = kind(name, text, labels=["pipeline", *labels])
        return self._found[name]

    def families(self) -> list[Metric]:
        return list(self._found.values())


def _source(samples: _Samples, name: str, source: Mapping[str, Any]) -> None:
    samples.add("signoff_events_received", source["received"], source=name)
    samples.add("signoff_events_settled", source["received"] - source["in_flight"], source=name)
    for outcome in (*(final.value for final in FINAL), "in_flight"):
        samples.add("signoff_events", source[outcome], source=name, outcome=outcome)
    samples.add("signoff_ignored_outcomes", source["ignored"], source=name)
    oldest = source["oldest_in_flight_seconds"] or 0.0
    samples.add("signoff_oldest_event_in_flight_seconds", oldest, source=name)
    seconds = {held["by"]: held["seconds"] for held in source["held"]}
    for by in ("intake", "engine"):
        samples.add("signoff_source_held_back_seconds", seconds.get(by, 0.0), source=name, by=by)


def _left(samples: _Samples, departures: list[LeftAt]) -> None:
    """By stage and outcome; the reasons are in `signoff status`, and may be many."""
    rows: Counter[tuple[str, str, str]] = Counter()
    for each in departures:
        rows[each["source"], each["stage"], each["outcome"]] += each["rows"]
    for (source, stage, outcome), number in rows.items():
        samples.add("signoff_undelivered_rows", number, source=source, stage=stage, outcome=outcome)


def _waiting(samples: _Samples, found: Mapping[str, Any]) -> None:
    for name, buffer in found["buffers"].items():
        samples.add("signoff_buffer_rows", buffer["waiting"], buffer=name)
        samples.add("signoff_buffer_bytes", buffer["bytes"], buffer=name)
        if buffer["max_bytes"] is not None:
            samples.add("signoff_buffer_limit_bytes", buffer["max_bytes"], buffer=name)
    for name, fold in found["folds"].items():
        samples.add("signoff_fold_open_groups", fold["open_groups"], fold=name)
    for name, step in found["dedupes"].items():
        samples.add("signoff_dedupe_keys", step["keys"], dedupe=name)
        samples.add("signoff_dedupe_waiting_duplicates", step["waiting"], dedupe=name)


def _windows(samples: _Samples, windows: Mapping[str, Any]) -> None:
    for name, window in windows.items():
        samples.add("signoff_window_events", window["events"], window=name)
        samples.add("signoff_window_late_events", window["late"], window=name)
        if window["closed_upto_seconds"] is not None:
            upto = window["closed_upto_seconds"]
            samples.add("signoff_window_watermark_timestamp_seconds", upto, window=name)
