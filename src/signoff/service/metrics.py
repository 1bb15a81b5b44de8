"""The metrics of all pipelines of a tenant on one page, as each run would show its own, and of the
service."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from signoff.errors import SignoffError
from signoff.service.hosted import Hosted
from signoff.service.readiness import processes_of
from signoff.service.run_process import find_run
from signoff.service.tenant import Tenant
from signoff.watch.metrics import PipelineMetrics

logger = logging.getLogger(__name__)

STATES = "signoff_service_pipelines"
UNREADABLE = "signoff_service_unreadable_pipelines"


def page(tenant: Tenant) -> str:
    """As Prometheus scrapes it."""
    registry = CollectorRegistry()
    registry.register(_All(tenant))
    return generate_latest(registry).decode()


class _All(Collector):
    """A metric that several pipelines have is one, with all their samples."""

    def __init__(self, tenant: Tenant) -> None:
        self._tenant = tenant

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        found: dict[str, Metric] = {}
        states: Counter[str] = Counter()
        unreadable = 0
        for name, hosted in sorted(self._tenant.pipelines.items()):
            state, metrics = "", list[Metric]()
            try:
                state = hosted.seen().state
                metrics = self._of(name, hosted)
            except Exception as error:  # whatever it is, the others have their metrics
                if hosted.removed:
                    continue
                unreadable += 1
                if not isinstance(error, SignoffError):  # else its status says why
                    logger.exception("the metrics of %s cannot be read", name)
            states.update([state] if state else [])
            for metric in metrics:
                known = found.setdefault(metric.name, metric)
                if known is not metric:
                    known.samples.extend(metric.samples)
        counted = GaugeMetricFamily(
            STATES, "Pipelines of the service, by what they are doing.", labels=["state"]
        )
        for state, number in states.items():
            counted.add_metric([state], number)
        yield counted
        yield GaugeMetricFamily(UNREADABLE, "Pipelines whose state cannot be read.", value=unreadable)
        yield from found.values()

    def _of(self, name: str, hosted: Hosted) -> list[Metric]:
        graph = self._tenant.graph(name)
        run = find_run(hosted.directory)
        return list(PipelineMetrics(graph, lambda: processes_of(graph, run)).collect())
