"""One pipeline as the page sees it: its graph, its counts of late, and the replays that were asked for here.

A thread reads the status again and again, and slower while nobody looks. It reads what is durable; when that
takes long, or this process is killed, no event waits for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import Self

from signoff.errors import SignoffError
from signoff.intake.status import read_status as read_intake
from signoff.ledger import DeadLetters
from signoff.link.job_sink import JobSinkConfig
from signoff.log import LogReader
from signoff.operate.graph_view import view_graph
from signoff.operate.loading import with_account
from signoff.operate.replay import Replay
from signoff.page.history import History, Key, Sample
from signoff.pipeline.graph import Graph
from signoff.pipeline.model import SourceConfig
from signoff.pipeline.secrets import redact
from signoff.sinks.report.sink import ReportSinkConfig
from signoff.watch.status import read_status
from signoff.watch.status_types import Status

logger = logging.getLogger(__name__)

LOOKED_AT_S = 1.0
"""Between two samples while somebody looks."""
ALONE_S = 5.0
_LOOKS_FOR_S = 30.0
_SHARE = 10
"""A status that took a second to read is read every ten seconds."""
_MOST_REPLAYS = 50
_OUTCOMES = ("received", "in_flight", "delivered", "dropped", "dead_lettered", "refused", "expired")


@dataclass(frozen=True)
class Reading:
    """The status at one moment."""

    status: Status
    letters: dict[str, int]
    """Open dead letters by stage."""
    owed: dict[str, int]
    """By sink, the events that it is still to be given rows of."""
    at: float
    """Seconds since the epoch."""


class WatchedPipeline:
    """Begin with `start`, end with `close`; or use it as a context."""

    def __init__(self, graph: Graph, *, follows: bool = True) -> None:
        """`follows`: whether other files that the pipeline names, such as jobs, may be looked into."""
        self.as_written, self.follows = graph, follows
        self.graph = with_account(graph)
        self.view = view_graph(self.graph)
        self.history = History()
        self.replays: OrderedDict[str, Replay] = OrderedDict()
        """By an id; the newest ones that were asked for on this page."""
        self._reading: Reading | None = None
        self._looked = time.monotonic() - _LOOKS_FOR_S
        self._lock = threading.Lock()
        self._woken, self._over = threading.Event(), False
        self._thread = threading.Thread(target=self._watch, name=f"page-{graph.name}", daemon=True)

    @property
    def name(self) -> str:
        return self.graph.name

    def start(self) -> Self:
        self._thread.start()
        return self

    def close(self) -> None:
        self._over = True
        self._woken.set()
        if self._thread.is_alive():
            self._thread.join()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def reading(self) -> Reading:
        """The newest; somebody looks now, so that there is one each second for a while."""
        asleep = time.monotonic() - self._looked > _LOOKS_FOR_S
        self._looked = time.monotonic()
        if asleep or self._reading is None:
            self._woken.set()
            return self.sample()
        return self._reading

    def sample(self) -> Reading:
        """Read the status now, and remember what it counts."""
        with self._lock:
            status = read_status(self.graph)
            with DeadLetters(self.graph.state / "dead_letters.db", readonly=True) as letters:
                by_stage: Counter[str] = Counter()
                for _, stage, number in letters.by_stage():
                    by_stage[stage] += number
            owed = {name: sink["owes"] for name, sink in status["sinks"].items()}
            self._reading = Reading(status, dict(by_stage), owed, time.time())
            self.history.add(Sample(time.monotonic(), time.time(), self._counts(status)))
            return self._reading

    def remember(self, name: str, replay: Replay) -> None:
        self.replays[name] = replay
        while len(self.replays) > _MOST_REPLAYS:
            self.replays.popitem(last=False)

    @property
    def has_jobs(self) -> bool:
        """Whether it is a job, starts jobs, or makes reports."""
        kinds = (JobSinkConfig, ReportSinkConfig)
        return self.as_written.is_job or any(
            isinstance(node.config, kinds) for node in self.as_written.sinks.values()
        )

    def log_limit(self, source: str) -> int | None:
        """Bytes at which a source is held back."""
        config = self.graph.sources[source].config
        return config.log.max_bytes if isinstance(config, SourceConfig) else None

    def _watch(self) -> None:
        said = ""
        while not self._over:
            begin = time.monotonic()
            try:
                self.sample()
                said = ""
            except (SignoffError, OSError) as error:  # a full disk, a state of another version
                if said != str(error):
                    logger.warning("the page cannot read the state: %s", redact(str(error)))
                said = str(error)
            looked_at = time.monotonic() - self._looked < _LOOKS_FOR_S
            took = time.monotonic() - begin
            self._woken.wait(max(LOOKED_AT_S if looked_at else ALONE_S, took * _SHARE))
            self._woken.clear()

    def _counts(self, status: Status) -> dict[Key, float]:
        counts: dict[Key, float] = {("dead_letters", ""): status["dead_letters"]}
        for name, source in status["sources"].items():
            counts |= {(word, name): float(dict(source)[word]) for word in _OUTCOMES}  # type: ignore[arg-type]
            log = LogReader(self.graph.state / "log" / name)
            counts["log", name] = log.size(log.first(), log.head())
            intake = read_intake(self.graph.state / "intake" / name)
            for index, number in enumerate(intake.settled_after if intake else ()):
                counts[f"took {index}", name] = number
        for name, sink in status["sinks"].items():
            counts["taken", name] = sink["rows"]
        left: Counter[str] = Counter()
        for each in status["left_at"]:
            left[each["stage"]] += each["rows"]
        counts |= {("left", name): float(left[name]) for name in self.graph.nodes}
        for name, buffer in status["buffers"].items():
            counts["waiting", name], counts["buffer", name] = buffer["waiting"], buffer["bytes"]
        for name, window in status["windows"].items():
            counts["late", name] = window["late"]
        return counts
