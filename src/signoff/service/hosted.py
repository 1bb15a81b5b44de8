"""One pipeline under the service: what it is asked to be, and the steps that bring it there.

`step` is called again and again. It compares the record (`record`) with the run that is alive
(`run_process`), and does the one thing that comes next: launch, ask to stop, switch an update, roll it
back. It keeps nothing in memory that it needs to go on after a kill but how often a run has crashed.

An update: the old run drains and ends; then the text is switched, in one write of the record; then the new
run starts. When that ends, or is not up in time, the old text is switched back. Nobody else has the state
directory in between, so every event in flight is settled by one of the two.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import Literal

from signoff.errors import SignoffError
from signoff.pipeline.graph import Graph
from signoff.pipeline.secrets import masking, redact
from signoff.service.handed_secrets import handed_over
from signoff.service.launch import NOT_WANTED, TAKEN
from signoff.service.readiness import why_not_ready
from signoff.service.record import Record, RecordFile, Stopping, Update, UpdateResult
from signoff.service.run_log import RunLog
from signoff.service.run_process import RunProcess, find_run
from signoff.service.secret_store import SecretStore
from signoff.service.uptime import since, uptime

logger = logging.getLogger(__name__)

LAUNCHER = (sys.executable, "-m", "signoff.service.launch")
STOP_S = 30.0
"""How long a run that is to stop may go on with what is in flight, if nobody says otherwise."""
START_S = 180.0
"""How long the run of a new text may take to come up before the old one is put back."""
_ABORT_S = 15.0
"""How long a run takes to end once it was told to leave what is in flight to the next one."""
_FIRST_WAIT_S, _LONGEST_WAIT_S = 1.0, 60.0
_STEADY_S = 60.0
"""A run that went on for so long did not crash because of how it was started."""
_BAD_PIPELINE = 2

State = Literal["stopped", "starting", "running", "stopping", "updating", "waiting", "failed"]


class Removed(Exception):
    """The pipeline was deleted meanwhile."""


@dataclass(frozen=True)
class Seen:
    """A hosted pipeline in a moment."""

    name: str
    state: State
    """`starting`: not all of it is up. `waiting`: its run has crashed, and is started again in a moment.
    `failed`: its run said that it cannot be run as it is, and it is left alone until it is started or
    changed."""
    why: str
    record: Record
    run: RunProcess | None
    crashes: int


class Hosted:
    """Used by the threads of requests and by the reconciler; every method takes the lock."""

    def __init__(
        self,
        directory: Path,
        environ: Callable[[], Mapping[str, str]],
        secrets: SecretStore,
        graph: Callable[[Record], Graph],
        record: Record,
        launcher: Sequence[str] = LAUNCHER,
    ) -> None:
        """`environ`, `secrets`: of its runs; the values are masked in all that is said of them. `graph`: the
        pipeline of a record, to look at its state. `launcher`: what becomes the run, started with the
        directory, the revision, and the descriptor of its secrets."""
        self.name, self.directory = directory.name, directory
        self.lock = threading.RLock()
        self.records = RecordFile(directory)
        self.log = RunLog(directory / "run.log")
        self._environ, self._secrets, self._graph, self._launcher = environ, secrets, graph, launcher
        self._record = record
        self.removed = False
        """It is deleted: nothing is written to its directory any more."""
        self._child: subprocess.Popen[bytes] | None = None
        self._known: RunProcess | None = None
        """The run as it was seen last."""
        self._began = 0.0
        self._log_from = 0
        self._launched = 0
        """The revision of the last launch by this service."""
        self._crashes, self._again_at = 0, 0.0
        self._failed = ""
        self._pressed: int | None = None
        """The run that was told to end at once."""

    # -- what is asked

    @property
    def record(self) -> Record:
        return self._record

    def seen(self) -> Seen:
        with self.lock, masking(self._secrets.register()):
            run, record = find_run(self.directory), self._record
            state, why = self._state(record, run)
            return Seen(self.name, state, redact(why), record, run, self._crashes)

    def graph(self) -> Graph:
        """The pipeline whose text is in force, to look at its state; without secrets."""
        return self._graph(self._record)

    def start(self) -> None:
        """Have it run."""
        with self._kept():
            self._failed, self._crashes, self._again_at = "", 0, 0.0
            self._write(replace(self._record, wanted="running"))

    def stop(self, within_s: float = STOP_S) -> None:
        """Have it end: what is in flight is finished within this time, or by the next run."""
        with self._kept():
            record = self._record
            stopping = None
            if find_run(self.directory) is not None or self._child is not None:
                earlier = record.stopping
                stopping = Stopping(uptime(), within_s, earlier.signalled if earlier else None)
            self._write(replace(record, wanted="stopped", stopping=stopping))

    def change(self, text: str, within_s: float = STOP_S) -> None:
        """Put a text that was checked in the place of the one in force. A drain that is under way goes on."""
        with self._kept():
            before = self._record
            revision = before.newest + 1
            self.records.add_text(revision, text)
            if before.wanted == "stopped" and find_run(self.directory) is None:
                done = UpdateResult(revision, "done", "", time.time())
                self._write(replace(before, revision=revision, last_update=done))
                self.records.put_in_force(self._record)
                return
            stopping = before.stopping or Stopping(uptime(), within_s)
            update = Update(revision, before.revision, "draining", uptime())
            self._failed, self._crashes, self._again_at = "", 0, 0.0
            self._write(replace(before, update=update, stopping=stopping))

    # -- what is done

    def step(self) -> None:
        """Do what comes next. Called every fraction of a second."""
        with self.lock, masking(self._secrets.register()):
            if self.removed:
                return
            run = find_run(self.directory)
            self._notice_end(run)
            record = self._record
            if record.stopping is not None and not (record.update and record.update.phase == "starting"):
                if run is not None or self._child is not None:
                    self._ask(record.stopping, run)
                    return
                self._pressed = None
                record = self._write(replace(record, stopping=None))
            if record.update is not None:
                self._update(record, record.update, run)
            elif record.wanted == "running":
                self._keep(record, run)
            elif run is not None:  # it was not seen when it was to stop
                self._write(replace(record, stopping=Stopping(uptime(), STOP_S)))
            self.log.bound()

    def _keep(self, record: Record, run: RunProcess | None) -> None:
        if run is not None and run.revision != record.revision:  # launched just before the text was switched
            self._write(replace(record, stopping=Stopping(uptime(), STOP_S)))
        elif run is None and self._child is None and not self._failed and time.monotonic() >= self._again_at:
            self._launch(record)

    def _update(self, record: Record, update: Update, run: RunProcess | None) -> None:
        if update.phase == "draining":  # and the old run has ended
            starting = replace(update, phase="starting", since=uptime())
            record = self._write(replace(record, revision=update.revision, update=starting))
            self.records.put_in_force(record)
            update = starting
        if record.wanted == "stopped":
            why = "it was asked to stop meanwhile; the new text is in force, and was not seen running"
            self._conclude(record, UpdateResult(update.revision, "stopped", why, time.time()))
            if run is not None and record.stopping is None:
                self._write(replace(self._record, stopping=Stopping(uptime(), STOP_S)))
        elif run is None and self._child is None:
            if self._launched == update.revision:
                self._roll_back(record, update, self.log.tail(since=self._log_from))
            else:
                launched = replace(record, update=replace(update, since=uptime()))
                self._launch(self._write(launched))
        elif run is not None and not self._why_not_ready(record, run):
            self._conclude(record, UpdateResult(update.revision, "done", "", time.time()))
        elif since(update.since) > START_S and run is not None:
            logger.error("%s: the new text is not up within %g s", self.name, START_S)
            run.signal(SIGKILL)

    def _roll_back(self, record: Record, update: Update, why: str) -> None:
        logger.error(
            "%s: revision %d did not start; %d runs again", self.name, update.revision, update.before
        )
        if since(update.since) > START_S:
            why = f"it was not up within {START_S:g} s\n{why}"
        why = why or "its run ended"
        result = UpdateResult(update.revision, "rolled_back", why, time.time())
        self._failed, self._crashes, self._again_at = "", 0, 0.0
        self._conclude(replace(record, revision=update.before), result)
        self.records.put_in_force(self._record)

    def _conclude(self, record: Record, result: UpdateResult) -> None:
        self._write(replace(record, update=None, last_update=result))
        self.records.forget_old(self._record)

    def _launch(self, record: Record) -> None:
        self._log_from, self._launched = self.log.size(), record.revision
        self._began = time.monotonic()
        try:
            with self.log.open() as log, handed_over(self._secrets.values()) as secrets:
                self._child = subprocess.Popen(
                    [*self._launcher, str(self.directory), str(record.revision), str(secrets)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self.directory,
                    env=dict(self._environ()),
                    pass_fds=(secrets,),
                    start_new_session=True,  # what ends the service ends no run
                )
        except (OSError, ValueError, SignoffError) as error:
            self.log.note(f"its run could not be launched: {error}")
            self._count_crash("it could not be launched")
            return
        logger.info("%s: revision %d is launched", self.name, record.revision)

    def _ask(self, stopping: Stopping, run: RunProcess | None) -> None:
        """Have the run end. Who is killed in the midst of this asks once more, which ends it at once: nothing
        is lost by that."""
        if stopping.asked_at > uptime():  # of an earlier start of the machine
            stopping = replace(stopping, asked_at=uptime())
            self._write(replace(self._record, stopping=stopping))
        late = since(stopping.asked_at) - stopping.within_s
        if run is None:
            return  # a launcher, which finds that it is not wanted
        if stopping.signalled != run.pid:
            run.signal(SIGTERM)
            self._write(replace(self._record, stopping=replace(stopping, signalled=run.pid)))
        elif late > _ABORT_S:
            run.signal(SIGKILL)
        elif late > 0 and self._pressed != run.pid:
            self._pressed = run.pid
            run.signal(SIGTERM)

    def _notice_end(self, run: RunProcess | None) -> None:
        """Count a run that has ended although it is wanted."""
        code = None
        if self._child is not None:
            code = self._child.poll()
            if code is None:
                self._known = run or self._known
                return
            self._child = None
            if code in (TAKEN, NOT_WANTED):
                self._known = run
                return
        elif self._known is None or run == self._known:
            self._known = run
            return
        self._known = run
        record = self._record
        if run is not None or record.wanted != "running" or record.stopping or record.update:
            return
        if code == _BAD_PIPELINE:
            self._failed = self.log.tail(since=self._log_from) or "its run ended with exit code 2"
            logger.error("%s cannot be run: %s", self.name, self._failed)
            return
        self._count_crash(f"its run ended with code {code}")

    def _count_crash(self, why: str) -> None:
        steady = time.monotonic() - self._began > _STEADY_S
        self._crashes = 1 if steady else self._crashes + 1
        wait = min(_FIRST_WAIT_S * 2 ** min(self._crashes - 1, 10), _LONGEST_WAIT_S)
        self._again_at = time.monotonic() + wait
        logger.warning("%s: %s; started again in %g s", self.name, why, wait)

    # -- what is seen

    def _state(self, record: Record, run: RunProcess | None) -> tuple[State, str]:
        if record.update is not None:
            return "updating", f"revision {record.update.revision} is {record.update.phase}"
        if run is not None and record.stopping is not None:
            return "stopping", "what is in flight is finished"
        if record.wanted == "stopped":
            return ("stopping", "") if run is not None else ("stopped", "")
        if self._failed:
            return "failed", self._failed
        if run is None and self._crashes and time.monotonic() < self._again_at:
            return "waiting", self.log.tail(since=self._log_from)
        why = self._why_not_ready(record, run)
        return ("starting", why) if why else ("running", "")

    def _why_not_ready(self, record: Record, run: RunProcess | None) -> str:
        if run is None:
            return "its process is starting"
        try:
            return why_not_ready(self._graph(record), run)
        except SignoffError as error:
            return f"it cannot be looked at: {error}"
        except (OSError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
            # Whatever its processes have written, others are shown.
            return f"what its processes say of themselves cannot be read: {type(error).__name__}: {error}"

    @contextmanager
    def _kept(self) -> Iterator[None]:
        """The lock, for what changes the record; raises Removed."""
        with self.lock:
            if self.removed:
                raise Removed(self.name)
            yield

    def _write(self, record: Record) -> Record:
        if record != self._record:
            self.records.write(record)
            self._record = record
        return record
