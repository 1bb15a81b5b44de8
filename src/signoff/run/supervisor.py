"""A run: one intake process per source, one engine process, and somebody who keeps them going.

    run ─┬─ intake (incoming)      receives, logs, tells the source
         ├─ intake (…)
         └─ engine ── JVM          reads the logs, writes to sinks, records outcomes

Any of them may be killed at any moment: it is started again and goes on from what is durable. When
the run itself is killed, all of them end, and the next run goes on.

A run ends in this order: intakes stop receiving; the engine finishes what is in flight, up to the
deadline; the intakes tell their sources what was settled, and end.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from signoff.durable import write_whole
from signoff.engine.delivery.link_writers import claim_links
from signoff.engine.delivery.open_sinks import run_of
from signoff.engine.full_disk import Room
from signoff.engine.split.division import all_boundaries
from signoff.engine.split.stateful import StatefulBoundary
from signoff.engine.state_dir.giving_up import stranded
from signoff.engine.state_dir.identity import StateIdentity
from signoff.engine.state_dir.renamed_sources import read_again
from signoff.errors import StateError
from signoff.intake import Instructions, Status, read_status
from signoff.ledger.ledger import Ledger
from signoff.ledger.outcome import Account
from signoff.ledger.run_lock import RunLock
from signoff.log import LogReader
from signoff.pipeline.graph import Graph
from signoff.pipeline.model import SourceConfig
from signoff.pipeline.started_jobs import jobs_started
from signoff.run.finish_sinks import finish_sinks, finishing_sinks
from signoff.run.options import RunOptions
from signoff.run.page import PageProcess
from signoff.run.processes import Child
from signoff.run.progress_snapshot import Phase
from signoff.traces.export import require_sdk

logger = logging.getLogger(__name__)

STILL_OWED = 3
"""Exit code: something was refused, has expired, or is still owed."""
_BAD_PIPELINE = 2
_TICK_S = 0.05
_ENGINE_GRACE_S = 20.0
_INTAKE_GRACE_S = 10.0
_MOST_CRASHES_ONCE = 5
"""A run that is to end does not start a process again for ever."""


class Run:
    """One run of a pipeline."""

    def __init__(
        self,
        graph: Graph,
        options: RunOptions,
        file: Path,
        engine: Child | None = None,
        intake: type[Child] = Child,
    ) -> None:
        """`engine`: one that is prepared already. `intake`: for tests, which have a faster way."""
        self.graph, self.options = graph, options
        self.stop_requested = False
        self.ended = False
        """Every process has ended; what is settled now is the result."""
        self.phase: tuple[Phase, float, float | None] = ("running", time.monotonic(), None)
        """What it does, since when, and until when at most, by the monotonic clock."""
        self.ledger: Ledger | None = None
        self._complete = False
        """It has come to its end: every source has ended, and everything is settled."""
        self._file = file
        boundaries = [boundary for _, boundary in all_boundaries(graph)]
        self._buffers = [boundary.source for boundary in boundaries if not boundary.best_effort]
        self._states = [boundary for boundary in boundaries if isinstance(boundary, StatefulBoundary)]
        self._intakes: dict[str, Child] = {}
        self._intake = intake
        self._engine = engine or Child("the engine", "signoff.engine")
        self._engine.job = self._engine_job()
        self._page: PageProcess | None = None
        self._invoker: Child | None = None
        if jobs_started(graph):
            self._invoker = Child("the invoker", "signoff.invoker", self._engine_job())

    def execute(self, on_tick: Callable[[Run], None] = lambda _: None) -> int:
        """Run to the end; returns the exit code. `on_tick` is called about every 50 ms."""
        if self.graph.settings.traces is not None:
            require_sdk()
        with self._state():
            before = self.accounts()
            if self.options.page is not None:
                self._page = PageProcess(self.options.page, json.loads(self._engine.job))
            try:
                self._start()
                code = self._watch(on_tick)
                self._finish(on_tick)
            finally:
                self._kill_all()
            code = code or self._finish_sinks()
            self.ended = True
            self._enter("ended")
            on_tick(self)
            return code or self._verdict(before)

    def accounts(self) -> dict[str, Account]:
        """The account of each source at this moment."""
        assert self.ledger is not None
        found = {}
        for name in self.graph.sources:
            books = self.ledger.books(name)
            found[name] = books.account(LogReader(self.graph.state / "log" / name).head())
        return found

    @property
    def engine_pid(self) -> int | None:
        return self._engine.pid

    @property
    def processes(self) -> dict[str, int]:
        """The processes of the run that are up, by name."""
        children = {
            "engine": self._engine,
            **({} if self._invoker is None else {"invoker": self._invoker}),
            **{f"intake {name}": each for name, each in self._intakes.items()},
        }
        up = {name: child.pid for name, child in children.items() if child.exit_code() is None}
        if self._page is not None:
            up["page"] = self._page.pid
        return {"run": os.getpid(), **{name: pid for name, pid in up.items() if pid is not None}}

    @property
    def invoker_pid(self) -> int | None:
        return None if self._invoker is None else self._invoker.pid

    def intake_status(self, source: str) -> Status | None:
        """What the intake that runs now says of itself; None until it has said anything."""
        status = read_status(self.graph.state / "intake" / source)
        child = self._intakes.get(source)
        return status if status is not None and child is not None and status.pid == child.pid else None

    # -- in the order of a run

    @contextmanager
    def _state(self) -> Iterator[None]:
        with RunLock(self.graph.state), self._with_room() as ledger:
            belonging = StateIdentity(self.graph.state, ledger, LogReader)
            nodes = {**self.graph.sources, **self.graph.sinks}
            belonging.refuse_copy(self.graph.base, {name: node.config for name, node in nodes.items()})
            belonging.check(self.graph.sources.keys())
            claim_links(self.graph, ledger)
            belonging.begin(self.graph.sources)
            self.ledger = ledger
            self._name_stranded()
            yield

    def _with_room(self) -> Ledger:
        """The ledger of a state directory that is this pipeline's, as soon as its disk has room for it."""

        def open_() -> Ledger:
            self._check_owner()
            return Ledger(self.graph.state / "ledger.db")

        return Room().wait_for(open_, self)

    @property
    def stopping(self) -> bool:
        return self.stop_requested

    def _name_stranded(self) -> None:
        """Say which sources were renamed or removed while events of theirs were in flight, or were kept."""
        assert self.ledger is not None
        for name, account in stranded(self.graph, self.ledger).items():
            logger.warning(
                'source "%s" is not in the pipeline any more, and %d of its events are not settled; put it '
                "back under this name to have them settled, or give them up: signoff sources drop FILE %s",
                name, account.in_flight, name,
            )  # fmt: skip
        for sentence in read_again(self.graph, self.ledger):
            logger.warning("%s", sentence)

    def _check_owner(self) -> None:
        """A state directory belongs to one pipeline: two would settle each other's events."""
        owner = self.graph.state / "pipeline"
        name = owner.read_text() if owner.exists() else ""  # an empty one was torn by a loss of power
        if not name:
            write_whole(owner, self.graph.name.encode())
        elif name != self.graph.name:
            raise StateError(
                f'{self.graph.state} holds the state of pipeline "{name}", not of "{self.graph.name}"; '
                "give this one a state directory of its own"
            )

    def _start(self) -> None:
        for name, node in self.graph.sources.items():
            assert isinstance(node.config, SourceConfig)
            stdin = os.dup(0) if node.config.type == "stdin" else None
            job = Instructions.of(
                name,
                node.config,
                state=self.graph.state,
                base=self.graph.base,
                once=self.options.once,
                acknowledges=self.graph.acknowledges(name),
                stdin_fd=stdin,
                log_format=self.options.log_format,
                pipeline=self.graph.name,
                traces=self.graph.settings.traces,
            )
            fds = () if stdin is None else (stdin,)
            child = self._intake(f'the intake of "{name}"', "signoff.intake", job.encode(), fds)
            child.start()
            self._intakes[name] = child
        self._engine.start()
        if self._invoker is not None:
            self._invoker.start()
        if self._page is not None:
            self._page.start()

    @property
    def _children(self) -> list[Child]:
        invoker = [] if self._invoker is None else [self._invoker]
        return [self._engine, *invoker, *self._intakes.values()]

    def _watch(self, on_tick: Callable[[Run], None]) -> int:
        """Keep the processes going until there is a reason to end; returns the exit code if it is one."""
        while not self.stop_requested:
            time.sleep(_TICK_S)
            on_tick(self)
            code = self._engine.exit_code()
            if code in (_BAD_PIPELINE, STILL_OWED):
                return code
            for child in self._children:
                if child.exit_code() is None:
                    continue
                if self.options.once and child.crashes >= _MOST_CRASHES_ONCE:
                    logger.error("%s does not stay up; see above and %s", child.name, self.graph.state)
                    return 1
                child.restart_when_due()
            if self._page is not None:
                self._page.tend()
            if self.options.once and self._all_settled():
                self._complete = True
                return 0
        return 0

    def _all_settled(self) -> bool:
        """Every source has ended, and all it gave is settled and told."""
        assert self.ledger is not None
        for name in self.graph.sources:
            status = self.intake_status(name)
            if status is None or status.state != "ended" or status.next_sequence != status.durable_sequence:
                return False
            if self.ledger.settled_upto(name) < status.durable_sequence or not status.drained:
                return False
        return not self._rows_wait() and not any(state.gives_more(self.graph) for state in self._states)

    def _rows_wait(self) -> bool:
        """Whether a buffer of the pipeline holds rows that its sink has not taken."""
        assert self.ledger is not None
        logs = self.graph.state / "log"
        return any(self.ledger.settled_upto(name) < LogReader(logs / name).head() for name in self._buffers)

    def _finish(self, on_tick: Callable[[Run], None]) -> None:
        grace = self.options.drain_s + _ENGINE_GRACE_S
        self._enter("stopping", self.options.drain_s)
        for child in self._intakes.values():
            child.ask_to_stop()
        self._wait(lambda: all(map(self._quiet, self._intakes)), 5.0, on_tick)
        self._engine.ask_to_stop()
        if self._invoker is not None:  # it begins no more runs; those that go on may come to their end
            self._invoker.ask_to_stop()
        self._enter("stopping", self.options.drain_s)
        self._wait(lambda: self._engine.exit_code() is not None, grace, on_tick)
        self._enter("telling", _INTAKE_GRACE_S)
        ending = [child for child in self._children if child is not self._engine]
        for child in ending:
            child.release()
        deadline = time.monotonic() + _INTAKE_GRACE_S
        for child in ending:
            child.wait(deadline - time.monotonic())

    def _finish_sinks(self) -> int:
        """Have sinks make what they make of all rows of a run, if it has come to its end."""
        assert self.ledger is not None
        names = [name for name, _ in finishing_sinks(self.graph)]
        if not self._complete:
            if names and self.options.once:
                logger.warning(
                    "the run was stopped before its end; the next one finishes %s", ", ".join(names)
                )
            return 0
        run = run_of(self.ledger, bounded=True)
        failures = finish_sinks(self.graph, run, self.options.patience_s or 0.0)
        for failure in failures:
            logger.error("%s", failure)
        return STILL_OWED if failures else 0

    def _enter(self, phase: Phase, at_most_s: float | None = None) -> None:
        now = time.monotonic()
        since = self.phase[1] if self.phase[0] == phase else now
        self.phase = (phase, since, None if at_most_s is None else now + at_most_s)

    def _quiet(self, source: str) -> bool:
        """The intake takes no more, and what it took is durable."""
        if self._intakes[source].exit_code() is not None:
            return True
        status = self.intake_status(source)
        stopped = status is not None and status.state in ("ended", "stopped", "failed")
        return stopped and status is not None and status.next_sequence == status.durable_sequence

    def _wait(self, condition: Callable[[], bool], seconds: float, on_tick: Callable[[Run], None]) -> None:
        deadline = time.monotonic() + seconds
        while not condition() and time.monotonic() < deadline:
            time.sleep(_TICK_S)
            on_tick(self)

    def _kill_all(self) -> None:
        for child in self._children:
            child.release()
            child.kill()
        if self._page is not None:
            self._page.close()

    def _verdict(self, before: dict[str, Account]) -> int:
        if not self.options.once:
            return 0
        for name, account in self.accounts().items():
            earlier = before[name]
            if account.in_flight or (account.refused + account.expired) > (earlier.refused + earlier.expired):
                return STILL_OWED
        assert self.ledger is not None
        return STILL_OWED if self._rows_wait() or stranded(self.graph, self.ledger) else 0

    def _engine_job(self) -> bytes:
        job = {
            "file": str(self._file),
            "layers": self.graph.layers.to_json(),
            "texts": dict(self.graph.texts),
            "drain_s": self.options.drain_s,
            "patience_s": self.options.patience_s,
            "log_format": self.options.log_format,
        }
        return json.dumps(job).encode() + b"\n"
