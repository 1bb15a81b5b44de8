"""From rows that ask for runs to answers: one sink of one pipeline.

taken ──► waiting, by key ──► decided, durably ──► started ──► ended ──► noted ──► answered

- A run is decided on for all rows of a key that were taken by then, and is started afterwards: so it sees
  the data they are about. Rows that come later wait for the next run of the key.
- It is asked for by a name of its own, under which the job's records know it: after any kill it is asked
  for again, and done once.
- Rows are answered when it is known and noted what became of the run: delivered when every sink of
  the job has signed, refused when the last try has failed.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from pyroaring import BitMap64

from signoff.errors import PipelineError
from signoff.invoker.notes import Invocation, InvokerNotes, Key, key_text
from signoff.invoker.processes import JobProcess, Process, end_all
from signoff.invoker.requests import Asking, Requests, Waiting, add_origins, needed_to, rows_of, values_of
from signoff.invoker.run_age import RunClock
from signoff.jobs.children import GOES_ON
from signoff.jobs.parameters import asked
from signoff.jobs.records import CANCELLED, Record, Records
from signoff.jobs.state_dir import is_being_done
from signoff.link.job_sink import JobSinkConfig, invoker_place
from signoff.link.notes import LinkNotes
from signoff.log import LogReader
from signoff.pipeline.graph import Graph
from signoff.pipeline.job_settings import Value, read_values, text_of
from signoff.pipeline.secrets import redact

logger = logging.getLogger("signoff.invoker")

_KEPT_RUNS = 10_000
_AT_ONCE = 50_000
_READ_AGAIN_S = 2.0
"""How long the job's file is taken to be as it was."""
_MOST_KILLS = 20
"""In a row, by whatever: then it counts as a try that failed."""
_LASTING = (errno.E2BIG, errno.ENAMETOOLONG)
"""Reasons why a process cannot be started that do not pass."""
_AGAIN_S = 0.5
_DONE, _WRONG, _STILL_OWED, _INCOMPLETE = 0, 2, 3, 4
"""Exit codes of `signoff jobs run`."""
_LONGEST_AGAIN_S = 15.0

Start = Callable[[Path, Mapping[str, str], str], Process]


class LoadJob(Protocol):
    """Reads a job's file, as a run with these values sees it. Raises PipelineError."""

    def __call__(
        self, file: Path, values: Mapping[str, Value] | None = None, texts: Mapping[str, str] | None = None
    ) -> Graph:
        """`texts`: what stood in its files when they were read before; without, they are read now."""
        ...


@dataclass
class _Going:
    """A run that is decided on and has not ended, as this process knows it."""

    run: Invocation
    process: Process | None = None
    kills: int = 0
    waits: int = 0
    before: tuple[str, int] | None = None
    """The last try the job's records had of it when it was started."""
    again_at: float = 0.0
    """When to start it, by the monotonic clock."""
    look_at: float = 0.0
    """When to see whether it has begun; and while it waits, whether it was cancelled."""
    said: bool = False
    """The log says that it began."""


@dataclass
class Invoker:
    """Looks after the rows of one sink. Used by one thread; one process has it."""

    pipeline: str
    sink: str
    config: JobSinkConfig
    base: Path
    state: Path
    load_job: LoadJob
    start: Start = JobProcess
    clock: RunClock = field(default_factory=RunClock)
    stopping: bool = False
    """No run is started any more."""
    _going: dict[int, _Going] = field(default_factory=dict)
    _requests: Requests = field(default_factory=Requests)

    def __post_init__(self) -> None:
        place = invoker_place(self.state, self.sink)
        self._log = LogReader(place.log)
        self._link = LinkNotes(place.database)
        self._notes = InvokerNotes(place.notes)
        self._file = (self.base / self.config.job).absolute()
        self._job: Graph | None = None
        self._read_again_at = 0.0
        self._told_at: int | None = None
        """The version of the notes whose runs have been answered."""
        self._trouble = ""
        self._remember()

    def _remember(self) -> None:
        """What an invoker before this one has decided."""
        self._known = BitMap64()
        """Rows that are in a run."""
        for run in self._notes.untold():
            self._known |= run.rows
            if run.state == "running":
                self._going[run.number] = _Going(run)
        self._next = max(self._log.first(), self._link.answered_upto())
        self._answered = self._link.settled()
        self._contents = self._notes.contents()
        self._began = {
            number: (key, self.clock.beginning(at)) for number, key, at in self._notes.beginnings()
        }
        self._last = dict(self._began.values())

    # -- again and again

    def step(self) -> bool:
        """Do what can be done now; whether anything was. Raises SignoffError, after which it may be tried
        again."""
        self._tell()
        self._see_begun()
        done = self._take()
        done |= self._reap()
        done |= self._decide()
        self._forget()
        return done

    def close(self) -> None:
        """End the runs that go on; whoever comes next goes on with them."""
        self.stopping = True
        end_all([going.process for going in self._going.values() if going.process is not None])
        self._reap()
        self._link.close()
        self._notes.close()

    def counts(self) -> dict[str, int]:
        """Keys: whose rows wait for a place, whose run goes on, whose rows wait until the last run is long
        enough ago; and the rows that wait."""
        now = self.clock.steady()
        running = {going.run.key for going in self._going.values()}
        free = [key for key in self._requests.keys if key not in running]
        cooling = sum(self._cool_at(key) > now for key in free)
        return {
            "waiting": len(free) - cooling, "running": len(running), "cooling": cooling,
            "rows": self._requests.rows + sum(len(going.run.rows) for going in self._going.values()),
        }  # fmt: skip

    # -- taking

    def _take(self) -> bool:
        end = self._log.end_after(self._next) if self._next else self._log.head()
        end = min(end, self._next + _AT_ONCE)
        if end <= self._next or (job := self._read_job()) is None:
            return False
        wrong: dict[int, tuple[str, bool]] = {}
        same: dict[int, list[Asking]] = {}
        for row in rows_of(self._log, self._link, self._next, end, self._is_new):
            try:
                given = values_of(job, row.request.given)
            except ValueError as error:
                wrong[row.number] = (redact(str(error)), False)
                continue
            row = replace(row, request=replace(row.request, content=self._content(row, given)))
            covered = self._contents.get((row.request.key, row.request.content))
            if covered is not None and self._is_remembered(covered):
                same.setdefault(covered, []).append(row)
            else:
                self._requests.add(row, given, job.settings.period, needed_to(job))
        for number, rows in same.items():
            self._join(number, rows)
        if wrong:
            self._link.answer(BitMap64(wrong), wrong)
        self._next = end
        return True

    def _read_job(self) -> Graph | None:
        """The job as its file is now, or was a moment ago; None if it cannot be read, or cannot be started by
        this sink: that is no fault of any row."""
        now = self.clock.steady()
        if self._job is None or now >= self._read_again_at:
            try:
                job = self.load_job(self._file)
            except PipelineError as error:
                self._say(f'job "{self.config.job}" cannot be read: {error}')
                return None
            if wrong := self.config.misfit(job.settings.parameters):
                self._say(f'job "{self.config.job}" cannot be started, and rows wait: {wrong}')
                return None
            self._job, self._read_again_at = job, now + _READ_AGAIN_S
            self._say("")
        return self._job

    def _content(self, row: Asking, given: Mapping[str, Value]) -> str:
        """The same for rows that are equal, and ask for the same of the same job: either may be edited."""
        values = {name: text_of(value) for name, value in sorted(given.items())}
        text = json.dumps([row.request.content, self.config.job, values])
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def _is_new(self, number: int) -> bool:
        return number not in self._known and number not in self._answered

    def _is_remembered(self, number: int) -> bool:
        began = self._began.get(number)
        if number in self._going:
            return self.config.same_within > 0
        return began is not None and self.clock.steady() < began[1] + self.config.same_within

    def _join(self, number: int, rows: list[Asking]) -> None:
        """The same rows again share the outcome of the run."""
        numbers, origins = BitMap64(row.number for row in rows), dict[str, BitMap64]()
        for row in rows:
            add_origins(origins, row)
        self._notes.join(number, numbers, origins)
        self._known |= numbers
        if number in self._going:
            found = self._notes.get(number)
            assert found is not None
            self._going[number].run = found

    # -- deciding and starting

    def _decide(self) -> bool:
        """Begin what may begin now, the oldest first."""
        if self.stopping:
            return False
        began, now = False, self.clock.steady()
        for going in list(self._going.values()):
            if going.process is not None:
                continue
            if (going.waits or going.run.tries) and going.look_at <= now:
                self._see_cancelled(going)
                began = going.run.state != "running"
            if going.run.state == "running" and going.again_at <= now and self._places() > 0:
                self._start(going)
                began = True
        running = {going.run.key for going in self._going.values()}
        for key in self._requests.keys:
            if self._places() <= 0:
                break
            if key not in running and self._cool_at(key) <= now:
                self._start(self._decided(self._requests.next_of(key)))
                began = True
        return began

    def _places(self) -> int:
        return self.config.at_most - sum(going.process is not None for going in self._going.values())

    def _cool_at(self, key: Key) -> float:
        """From when on a key may have its next run."""
        last = self._last.get(key)
        return 0.0 if last is None else last + self.config.cool_down

    def _decided(self, waiting: Waiting) -> _Going:
        number, began = self._notes.next_number(), self.clock.now()
        events = sum(len(sequences) for sequences in waiting.origins.values())
        asked_by = (
            f"{self.pipeline}/{self.sink} {secrets.token_hex(4)}-{number}: {events} "
            f"event{'' if events == 1 else 's'}, the first {waiting.first}"
        )
        run = Invocation(
            number, asked_by, waiting.key, waiting.texts(), waiting.rows, waiting.first, began,
            origins=waiting.origins,
        )  # fmt: skip
        self._notes.decide(run, waiting.contents)
        self._requests.remove(waiting)
        self._known |= run.rows
        self._began[number] = (run.key, began.steady)
        self._last[run.key] = began.steady
        self._contents |= {(run.key, content): number for content in waiting.contents}
        self._going[number] = going = _Going(run)
        return going

    def _see_cancelled(self, going: _Going) -> None:
        """A run that somebody has cancelled is waited for no longer. Looked at now and then."""
        going.look_at = self.clock.steady() + _READ_AGAIN_S
        if (record := self._record(going.run)) is not None and record.state == CANCELLED:
            self._given_up_on(going, record.reason, record.id)

    def _is_done_elsewhere(self, run: Invocation) -> bool:
        """Whether another process has the lock of the run now: one of its own would only say so."""
        if (job := self._read_job() or self._job) is None:
            return False
        try:
            return is_being_done(job.state, asked(job, run.given).key)
        except (PipelineError, OSError):  # its process says what is wrong
            return False

    def _start(self, going: _Going) -> None:
        run = going.run
        if self._is_done_elsewhere(run):
            going.again_at = self.clock.steady() + _AGAIN_S
            return None
        going.before = _try_of(self._record(run))
        try:
            going.process = self.start(self._file, run.given, run.asked_by)
        except (OSError, ValueError) as error:
            reason = f"its process cannot be started: {error}"
            transient = isinstance(error, OSError) and error.errno not in _LASTING
            if transient and going.kills < _MOST_KILLS:
                logger.warning('sink "%s": the run for %s: %s', self.sink, key_text(run.key), reason)
                going.kills += 1
                return self._later(going)
            self._failed(going, reason, run.run)
        return None

    def _see_begun(self) -> None:
        """The job names a run when it begins it, in its process: looked at now and then until it has."""
        now = self.clock.steady()
        for going in self._going.values():
            if going.process is not None and not going.said and going.look_at <= now:
                going.look_at = now + _READ_AGAIN_S
                self._say_begun(going, self._record(going.run))

    def _say_begun(self, going: _Going, record: Record | None) -> None:
        if record is None or going.said or _try_of(record) == going.before:
            return
        began = "began" if record.tries == 1 else f"began again (try {record.tries})"
        events = going.run.events
        text = 'sink "%s": run %s %s for %d event%s'
        logger.info(text, self.sink, record.id, began, events, "" if events == 1 else "s")
        going.said = True

    # -- ending

    def _reap(self) -> bool:
        ended = False
        for going in list(self._going.values()):
            if going.process is not None and (code := going.process.code()) is not None:
                going.process = None
                self._ended(going, code)
                ended = True
        if ended:
            self._tell()
        return ended

    def _ended(self, going: _Going, code: int) -> None:
        run = going.run
        record = self._record(run)
        self._say_begun(going, record)
        if record is not None and record.state == "done":
            took_s = self.clock.steady() - self.clock.beginning(run.began)
            logger.info('sink "%s": run %s done in %.0f s', self.sink, record.id, took_s)
            self._note(going, state="done", run=record.id, reason="", ended_at=self.clock.time_of_day())
            return None
        if record is not None and record.state == CANCELLED:
            return self._given_up_on(going, record.reason, record.id)
        if code == GOES_ON or self.stopping:
            going.again_at = self.clock.steady() + _AGAIN_S
            return None
        # Done, and not recorded: the job has another `state` by now.
        if (code < 0 or code >= 128 or code == _DONE) and going.kills < _MOST_KILLS:
            going.kills += 1
            return self._later(going)
        if code == _INCOMPLETE:
            return self._lacks_data(going, _reason(record, code))
        begun = record if _try_of(record) != going.before else None
        if code == _WRONG and begun is None and (why := self._wrong_values(run)):
            return self._given_up_on(going, f"the job is wrong for these values: {why}", "")
        if (code == _WRONG and begun is None) or (
            code == _STILL_OWED and (begun is None or begun.state != "failed")
        ):
            return self._waits(going, code, _reason(begun, code))
        self._failed(going, _reason(record, code), record.id if record is not None else "")
        return None

    def _waits(self, going: _Going, code: int, reason: str) -> None:
        """For the job's file to be right again, or for sinks of the job that still owe rows: the run has not
        failed, and what it has made is not lost."""
        going.waits += 1
        wait = _LONGEST_AGAIN_S if code == _WRONG else self.config.retry.wait_s(going.waits)
        self._note(going, reason=redact(reason))
        going.again_at = self.clock.steady() + wait
        text = 'sink "%s": the run for %s is not done yet, asked for again in %.0f s: %s'
        logger.warning(text, self.sink, key_text(going.run.key), wait, redact(reason))

    def _lacks_data(self, going: _Going, reason: str) -> None:
        """What the rows are about is not in the tables yet: nothing is settled, and no try has failed."""
        if self.clock.steady() - self.clock.beginning(going.run.began) < self.config.complete_within:
            return self._waits(going, _INCOMPLETE, reason)
        record = self._record(going.run)
        return self._given_up_on(going, reason, "" if record is None else record.id)

    def _failed(self, going: _Going, reason: str, name: str) -> None:
        """A try has failed: there is another, or it was the last."""
        run, going.kills = going.run, 0
        tries, reason = run.tries + 1, redact(reason)
        if self.config.retry.attempts is not None and tries >= self.config.retry.attempts:
            return self._given_up_on(going, reason, name)
        self._note(going, tries=tries, run=name, reason=reason)
        wait = self.config.retry.wait_s(tries)
        going.again_at, going.said = self.clock.steady() + wait, False
        text = 'sink "%s": %s failed, next try in %.0f s: %s'
        logger.warning(text, self.sink, _called(run, name), wait, reason)
        return None

    def _given_up_on(self, going: _Going, reason: str, name: str) -> None:
        """There is no further try: the rows that asked for the run are refused."""
        run, reason = going.run, redact(reason)
        logger.error('sink "%s": %s is given up: %s', self.sink, _called(run, name), reason)
        ended_at = self.clock.time_of_day()
        self._note(going, state="failed", tries=run.tries + 1, run=name, reason=reason, ended_at=ended_at)

    def _wrong_values(self, run: Invocation) -> str:
        """Why the job's file, which is right with sample values, is wrong with those of a run: no waiting
        helps. '' if it is not, or is wrong for all. The values are those that the sink gave when the run was
        decided on: sink and job may have agreed on other parameters since."""
        if (job := self._read_job()) is None:
            return ""
        try:
            self.load_job(self._file, read_values(job.settings.parameters, run.given), job.texts)
        except (PipelineError, ValueError) as error:
            return str(error)
        return ""

    def _later(self, going: _Going) -> None:
        going.again_at = self.clock.steady() + min(_AGAIN_S * 2**going.kills, _LONGEST_AGAIN_S)

    def _record(self, run: Invocation) -> Record | None:
        """What the job knows of a run."""
        job = self._read_job() or self._job
        if job is None:
            return None
        with Records(job.state, readonly=True) as records:
            return records.asked_by(run.asked_by)

    def _note(self, going: _Going, **fields: Any) -> None:
        self._notes.change(going.run.number, **fields)
        going.run = replace(going.run, **fields)
        if going.run.state == "failed":
            number = going.run.number
            self._contents = {same: of for same, of in self._contents.items() if of != number}
        if going.run.state != "running":
            del self._going[going.run.number]

    def _tell(self) -> None:
        """Answer the rows of runs that have ended."""
        version = self._notes.version()
        if version == self._told_at:
            return
        for run in self._notes.untold():
            if run.state == "running":
                continue
            refused = {} if run.state == "done" else dict.fromkeys(run.rows, (self._given_up(run), True))
            self._link.answer(run.rows, refused)
            self._notes.change(run.number, told=1)
            self._answered |= run.rows
        self._told_at = version

    def _given_up(self, run: Invocation) -> str:
        times = "once" if run.tries == 1 else f"{run.tries} times"
        name = run.run or f"for {key_text(run.key)}"
        return f"run {name} of {self.config.job} failed {times}: {run.reason}"

    # -- forgetting

    def _forget(self) -> None:
        """What cannot be asked for any more."""
        now, config = self.clock.steady(), self.config
        longest = max(config.same_within, config.cool_down)
        old = [
            number
            for number, (_, began) in self._began.items()
            if began + longest < now and number not in self._going
        ]
        if not old:
            return
        gone = set(old)
        self._notes.forget_contents(old)
        self._contents = {same: number for same, number in self._contents.items() if number not in gone}
        for number in old:
            key, began = self._began.pop(number)
            if self._last.get(key) == began:
                del self._last[key]
        self._notes.forget_runs(max(old) - _KEPT_RUNS)

    def _say(self, trouble: str) -> None:
        if trouble and trouble != self._trouble:
            logger.error('sink "%s": %s', self.sink, redact(trouble))
        self._trouble = trouble


def _try_of(record: Record | None) -> tuple[str, int] | None:
    return None if record is None else (record.id, record.tries)


def _called(run: Invocation, name: str) -> str:
    """A run as people find it again: by the name that the job gave it, if it got as far."""
    return f"run {name}" if name else f"the run for {key_text(run.key)}"


def _reason(record: Record | None, code: int) -> str:
    if record is not None and record.reason:
        return record.reason
    return f"its process ended with code {code}; the log of the run says why"
