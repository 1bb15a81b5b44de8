"""The engine: one Spark session, one query per source, and what has to be looked after between batches.

It runs in a process of its own under `signoff run`, or inside a program that calls `Pipeline.run`.
It never talks to a source; it reads logs, and writes what became of the events into the ledger.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Literal

from pyspark.sql import SparkSession

from signoff.engine.batch.interrupts import GaveUp, Interrupts
from signoff.engine.batch.publishing import settle_places
from signoff.engine.feedback.links import LinkFeedback, build_link_feedback
from signoff.engine.feedback.results import ResultsFeedback, build_result_feedback
from signoff.engine.full_disk import Room
from signoff.engine.parts import build_parts
from signoff.engine.query.base import SourceQuery
from signoff.engine.query.batched import BatchedQuery
from signoff.engine.readiness import not_ready
from signoff.engine.replay.replayer import Replayer
from signoff.engine.spark.cluster import Cluster, check_master
from signoff.engine.split.division import all_boundaries
from signoff.engine.state_dir.buffers import read_buffers
from signoff.engine.state_dir.identity import StateIdentity
from signoff.engine.state_dir.new_sinks import newcomers
from signoff.engine.state_dir.removed_nodes import what_is_gone
from signoff.engine.state_queries.base import StateQuery, Surroundings
from signoff.engine.state_queries.kinds import state_query
from signoff.errors import PermanentError, SignoffError, StateError, TransientError
from signoff.installed_types import fault_of
from signoff.intake.backpressure import Held
from signoff.intake.status import read_status
from signoff.ledger.compaction import KEY_INDEX
from signoff.ledger.dead_letters import DeadLetters
from signoff.ledger.ledger import Ledger
from signoff.ledger.store import no_room
from signoff.log import LogReader
from signoff.pipeline.graph import Graph
from signoff.pipeline.secrets import redact
from signoff.private import make_state, opener
from signoff.sinks.contract import Sink

logger = logging.getLogger(__name__)

_LOOK_S = 0.05
_STATUS_S = 0.5
_RATE_OVER_S = 5.0
_REPLAYS_S = 0.5
_TIDY_S = 0.2
_PREPARE_S = 5.0
_RESTART_FIRST_S = 0.5
_RESTART_MOST_S = 30.0
_ROOM_S = 1.0
"""How soon a query is started again that has failed for lack of room."""
_STEADY_S = 60.0
"""A query that ran this long is started again at once when it fails."""
_MOST_RESTARTS = 4
"""In a run that is to end; else a query is started again for ever, more and more seldom."""

State = Literal["starting", "running", "draining", "stopped"]


class Engine:
    """Runs the queries of a graph until it is told to stop."""

    def __init__(self, graph: Graph, control: Interrupts, spark: SparkSession | None = None) -> None:
        self.graph, self.control = graph, control
        make_state(graph.state)
        self.status = EngineStatus(graph.state)
        self.status.report("starting")
        self._owns_session = spark is None
        if spark is not None:
            check_master(graph, spark)
        self.cluster = Cluster.start(graph) if spark is None else Cluster(spark)
        self.spark = self.cluster.spark
        self.room = Room()
        self.ledger = self.room.wait_for(lambda: Ledger(graph.state / "ledger.db"), control)
        self.letters = self.room.wait_for(lambda: DeadLetters(graph.state / "dead_letters.db"), control)
        parts = build_parts(graph, self.spark, self.ledger, self.letters, control, self.room)
        self._repeats = [part.repeats for part in parts if part.repeats is not None]
        for repeats in self._repeats[:1]:  # they share one index
            self.ledger.on_forget = repeats.release
            with self.room:  # it may have been made just now
                StateIdentity(graph.state, self.ledger, LogReader).stamp(KEY_INDEX)
        for repeats in self._repeats:
            repeats.say_changes()
        self.sinks = {name: entry for part in reversed(parts) for name, entry in part.sinks.items()}
        self._entries = [(name, entry) for part in parts for name, entry in part.sinks.items()]
        boundaries = [boundary for _, boundary in all_boundaries(graph)]
        self.queries: dict[str, SourceQuery] = {}
        around = Surroundings(boundaries, self.sinks, self.queries, self._why_held)
        for part in parts:
            for name in part.graph.sources:
                self.queries[name] = state_query(part, name, around) or BatchedQuery(part, name)
        self.states = [query for query in self.queries.values() if isinstance(query, StateQuery)]
        self._best_effort = {boundary.source for boundary in boundaries if boundary.best_effort}
        self.feedback: list[LinkFeedback | ResultsFeedback] = [
            *build_link_feedback(
                graph, [part.graph for part in parts], self.ledger, self.queries, self.letters
            ),
            *build_result_feedback(graph, self.ledger, self.queries),
        ]
        self.replayer = Replayer(parts)
        self._restart_at: dict[str, tuple[float, float]] = {}
        self._failures: dict[str, str] = {}
        """Why queries failed last, by source."""
        self._replays_at = self._tidy_at = 0.0
        self._unprepared: dict[str, Sink] = {}
        """Sinks that failed before they were given rows."""
        self._preparing: threading.Thread | None = None
        self._prepare_at = 0.0

    def run(self) -> str | None:
        """Run until stopped and drained. Returns why it gave up, or None."""
        with self.room:
            for name in self.graph.sources:
                if not self.graph.acknowledges(name):
                    self.ledger.tells_nobody(name)
        self._prepare_sinks()
        for name, query in self.queries.items():
            settle = partial(settle_places, self.ledger, name, query.runner.sinks)
            self.room.wait_for(settle, self.control)
        self._name_orphans()
        self._name_newcomers()
        try:
            for query in self.queries.values():
                self.room.tried(query.start)
            self.status.report("running", not_ready=self._not_ready())
            while not self._finished():
                time.sleep(_LOOK_S)
                self._look_after()
                if (gave_up := self._gave_up()) is not None:
                    return gave_up
                self._tend()
                if self.status.due:
                    state: State = "draining" if self.control.stopping else "running"
                    self.status.report(state, self._settled(), self._held(), self._not_ready())
        finally:
            self._stop()
            for feedback in self.feedback:
                with self.room:
                    feedback.tend()  # what the last passes have settled
        return None

    def _tend(self) -> None:
        """What has to be done again and again. What a full disk prevents is done the next time."""
        for feedback in self.feedback:
            with self.room:
                feedback.tend()
        if time.monotonic() >= self._tidy_at:
            for query in self.queries.values():
                with self.room:
                    query.tidy()
                query.holding.look(query.searching or query.why_held() or self.room.trouble)
            with self.room:
                for feedback in self.feedback:
                    feedback.tidy()
            self._tend_states()
            self._tidy_at = time.monotonic() + _TIDY_S
        if self._unprepared and time.monotonic() >= self._prepare_at and not self.control.stopping:
            self._prepare_again()
        if time.monotonic() >= self._replays_at and not self.control.stopping:
            done = 0
            with self.room:
                if self.control.patience_s is None:
                    done = self.replayer.step()  # the rest in the next turns: nothing else waits for it
                else:  # it is to end by itself: all that is requested is done before
                    self.replayer.run(lambda: self.control.overdue)
            self._replays_at = time.monotonic() + (0.0 if done else _REPLAYS_S)

    def close(self) -> None:
        for feedback in self.feedback:
            feedback.close()
        for _, entry in self._entries:
            entry.sink.release()
        for repeats in self._repeats:
            repeats.close()
        self.ledger.close()
        self.letters.close()
        if self.graph.settings.traces is not None:
            from signoff.traces.export import close_shared

            close_shared(self.graph.name, "engine")
        if self._owns_session:
            self.cluster.stop()

    @property
    def idle(self) -> bool:
        """Everything in the logs is settled."""
        given_up = {name for name in self._best_effort if self.queries[name].ended is not None}
        return all(query.idle for name, query in self.queries.items() if name not in given_up)

    def _settled(self) -> dict[str, int]:
        return {name: self.ledger.books(name).settled for name in self.queries}

    def _not_ready(self) -> dict[str, dict[str, str]]:
        try:
            found = not_ready(self.graph.sources, self.queries, self.ledger, self.room.trouble)
        except StateError as error:
            found = {name: {"ledger": str(error)} for name in self.graph.sources}
        return {name: {who: redact(why) for who, why in reasons.items()} for name, reasons in found.items()}

    def _held(self) -> dict[str, Held]:
        return {name: query.holding.held for name, query in self.queries.items() if query.holding.held}

    def _why_held(self, source: str) -> str:
        """Why no more events of a source come to the steps behind it, for now; '' if they do."""
        if (reason := self.queries[source].why_held()) or source not in self.graph.sources:
            return reason
        status = read_status(self.graph.state / "intake" / source)
        if status is None or status.state not in ("receiving", "held"):
            return ""
        return status.held_because or (status.reason or "held" if status.state == "held" else "")

    def _finished(self) -> bool:
        return self.control.stopping and (self.idle or self.control.overdue)

    def _look_after(self) -> None:
        """Start queries again that failed."""
        now = time.monotonic()
        for name, query in self.queries.items():
            failure = query.failure()
            if failure is None or query.ended is not None:
                continue
            due, wait = self._restart_at.get(name, (now, _RESTART_FIRST_S))
            if now < due:
                continue
            if now > due + _STEADY_S:
                wait = _RESTART_FIRST_S
            self._failures[name] = redact(failure)
            logger.warning('the query of "%s" stopped and is started again: %s', name, redact(failure))
            if self.room.is_missing(failure):
                self._restart_at[name] = (now + _ROOM_S, _RESTART_FIRST_S)
            else:
                self._restart_at[name] = (now + wait, min(wait * 2, _RESTART_MOST_S))
            if not self.room.tried(query.start):
                self._restart_at[name] = (now + _ROOM_S, _RESTART_FIRST_S)

    def _tend_states(self) -> None:
        """What a full disk prevents is done the next time."""
        ending = self.control.stopping and self.control.patience_s is None
        for state in self.states:
            with self.room, suppress(StateError):
                state.tend(ending=ending)

    def _gave_up(self) -> str | None:
        if self.control.patience_s is not None:
            for name, (_, wait) in self._restart_at.items():
                if wait > _RESTART_FIRST_S * 2**_MOST_RESTARTS:
                    why = f": {self._failures[name]}" if name in self._failures else ""
                    return f'the query of "{name}" fails again and again{why}{self._see_log()}'
        for name, query in self.queries.items():
            if isinstance(query.ended, GaveUp) and name not in self._best_effort:
                return str(query.ended)
        return None

    def _see_log(self) -> str:
        """Where more is said of a failure; nowhere in a session that somebody else has started."""
        log = self.graph.state / "spark.log"
        return f"; see {log}" if log.exists() else ""

    def _prepare_sinks(self) -> None:
        for name, entry in self._entries:
            try:
                entry.sink.prepare()
            except (TransientError, PermanentError) as error:
                self._leave_unprepared(name, entry.sink, error)
            except SignoffError:
                raise
            except Exception as error:
                if (fault := fault_of(entry.config, "prepare", error)) is None:
                    raise
                self._leave_unprepared(name, entry.sink, fault)

    def _leave_unprepared(self, name: str, sink: Sink, error: SignoffError) -> None:
        """No reason not to start: the first rows meet the same error, and the sink's own policy."""
        logger.warning('sink "%s" is not ready: %s', name, redact(str(error)))
        self._unprepared[name] = sink
        with self.room:
            self.ledger.note_sink(name, error=redact(str(error)))

    def _prepare_again(self) -> None:
        """Ask sinks that were not ready whether they are now: nobody else does while no rows come, and
        whoever waits for `/ready` sends none. In a thread, since some take long to say no."""
        if self._preparing is not None and self._preparing.is_alive():
            return

        def prepare() -> None:
            for name, sink in list(self._unprepared.items()):
                with suppress(Exception):  # whatever it is, the first rows meet it, too
                    sink.prepare()
                    del self._unprepared[name]
                    with self.room:
                        self.ledger.note_sink(name)

        self._prepare_at = time.monotonic() + _PREPARE_S
        self._preparing = threading.Thread(target=prepare, name="prepare", daemon=True)
        self._preparing.start()

    def _name_newcomers(self) -> None:
        """Say of sinks that are new what they get."""
        logs = {name: query.log for name, query in self.queries.items()}
        sinks = {
            name: [sink for sink in query.runner.sinks if sink in self.graph.sinks]
            for name, query in self.queries.items()
        }
        for sentence in newcomers(self.ledger, logs, sinks):
            logger.info("sink %s", sentence)

    def _name_orphans(self) -> None:
        """Say what waits for nodes that were renamed or removed: rows of sinks and buffers, and letters."""
        for sentence in what_is_gone(self.graph, self.ledger, self.letters).sentences():
            logger.warning("%s", sentence)
        for buffer in read_buffers(self.graph, self.ledger).values():
            if buffer.orphan:
                logger.warning(
                    'buffer "%s" holds %d row%s, and no sink takes them; put the sink back, name the buffer '
                    "in another (buffer: {name: %s}), or give it up: signoff buffers drop FILE %s",
                    buffer.name, buffer.waiting, "" if buffer.waiting == 1 else "s", buffer.name, buffer.name,
                )  # fmt: skip

    def _stop(self) -> None:
        for query in self.queries.values():
            try:
                query.stop()
                query.runner.stage_counts.log(everything=True)
            except Exception as error:  # noqa: BLE001 - the run is over; Spark may be gone already
                logger.info("stopping a query: %s", redact(str(error)))
        self.status.report("stopped")


class EngineStatus:
    """`state/engine.json`: is the engine there, what is it doing, and how fast."""

    def __init__(self, state: Path) -> None:
        self._path = state / "engine.json"
        self._since = time.time()
        self._last = -_STATUS_S
        self._seen: deque[tuple[float, Mapping[str, int]]] = deque(maxlen=round(_RATE_OVER_S / _STATUS_S))

    @property
    def due(self) -> bool:
        return time.monotonic() - self._last >= _STATUS_S

    def report(
        self,
        state: State,
        settled: Mapping[str, int] | None = None,
        held: Mapping[str, Held] | None = None,
        not_ready: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        """Write it. By source: `settled` events so far, why it is `held` back here, if it is, and who is not
        ready to settle an event now."""
        now = time.monotonic()
        self._last = now
        content: dict[str, object] = {
            "pid": os.getpid(),
            "state": state,
            "since": self._since,
            "updated_at": time.time(),
            "rates": self._rates(now, settled or {}),
            "held": {name: asdict(each) for name, each in (held or {}).items()},
            "not_ready": not_ready or {},
        }
        aside = self._path.with_suffix(f".{os.getpid()}")
        try:
            with open(aside, "w", opener=opener) as file:
                json.dump(content, file)
            aside.replace(self._path)
        except OSError as error:
            if not no_room(error):
                raise
            with suppress(OSError):  # what it said before stays
                aside.unlink()

    def _rates(self, now: float, settled: Mapping[str, int]) -> dict[str, float]:
        """Events settled per second over the last few seconds."""
        self._seen.append((now, settled))
        then, before = self._seen[0]
        if now <= then:
            return {}
        return {
            name: round((number - before[name]) / (now - then), 1)
            for name, number in settled.items()
            if name in before
        }
