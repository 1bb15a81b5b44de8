"""`python -m signoff.intake`: read the job, open everything, run, and say why when it does not work.

Exit codes: 0 the run is over; 1 the source or the log cannot be used (the reason is in the status
and on standard error; trying again later may help).
"""

from __future__ import annotations

import logging
import os
import sqlite3
import sys
import time
from contextlib import suppress
from dataclasses import replace
from importlib.abc import MetaPathFinder
from pathlib import Path

from signoff.durable import make_directory
from signoff.errors import SignoffError
from signoff.intake.clock_notes import ClockNotes
from signoff.intake.control import Control
from signoff.intake.deadlines import Deadlines
from signoff.intake.job import Job
from signoff.intake.kind_notes import own_place
from signoff.intake.loop import Intake
from signoff.intake.readiness import Readiness
from signoff.intake.status import Status, StatusFile, read_status
from signoff.ledger import Follower, Ledger
from signoff.ledger.store import no_room
from signoff.log import LogReader, LogWriter
from signoff.pipeline.model import SourceConfig
from signoff.pipeline.secrets import redact
from signoff.private import keep_private
from signoff.sources.contract import Resume, SourceContext
from signoff.watch.logs import set_up_logging

logger = logging.getLogger("signoff.intake")

NO_ROOM_S = 1.0
"""How soon to try again what failed for lack of room."""
LOCKED = "[log-locked]"
"""Another intake has the log: the status is that one's, and must not be written over."""


def main() -> int:
    """One intake process, from its job to its end."""
    sys.meta_path.insert(0, _NoPandas())
    keep_private()
    control = Control(os.dup(0))
    control.listen()
    set_up_logging("text")
    try:
        job = Job.decode(control.read_job())
    except SignoffError as error:
        return _fail(None, str(error))
    set_up_logging(job.log_format)
    _take_over_stdin(job.stdin_fd)
    try:
        while not _run_with_room(job, control):
            pass
    except SignoffError as error:
        return _fail(job, str(error))
    except Exception as error:  # the last place where a reason can be left
        logger.exception('source "%s" failed', job.name)
        return _fail(job, f"{type(error).__name__}: {error}")
    return 0


def _run_with_room(job: Job, control: Control) -> bool:
    """Run to the end of the run; false when that failed for lack of room, and there may be some now."""
    try:
        make_directory(job.directory)
        run(job, control)
    except (OSError, SignoffError, sqlite3.Error) as error:
        if not no_room(error):
            raise
        reason = redact(str(error))
        logger.warning('source "%s" cannot be opened: there is no room: %s', job.name, reason)
        StatusFile(job.directory).report(Status(os.getpid(), "held", reason, reason, time.time()))
        return control.over(NO_ROOM_S)
    return True


def run(job: Job, control: Control) -> None:
    """Open the log, the ledger and the source; receive and tell until the run is over."""
    config = job.source_config()
    source = config.build(Path(job.base))  # type: ignore[attr-defined]
    log = LogWriter(job.log_directory, config.log)
    ledger = Ledger(job.ledger) if job.acknowledges else None
    try:
        unit, position = own_place(job.directory, job.type, log.next_sequence, log.last)
        settled = ledger.settled_upto(job.name) if ledger else log.next_sequence
        ready = Readiness(Path(job.state), job.name) if job.engine and job.acknowledges else dict
        context = SourceContext(
            job.name,
            job.directory,
            job.once,
            Path(job.base),
            LogReader(job.log_directory),
            state=Path(job.state),
            not_ready=ready,
        )
        try:
            source.open(context, Resume(log.next_sequence, unit, position, settled))
        except BaseException:
            with suppress(Exception):  # half open: it may be tried again in this process
                source.close()
            raise
        follower = Follower(ledger, job.name) if ledger else None
        notes = ClockNotes(job.directory)
        deadlines = _deadlines(job, config, settled, notes) if ledger else None
        Intake(source, log, follower, control, StatusFile(job.directory), deadlines, notes).run()
    finally:
        log.close()
        if ledger:
            ledger.close()


def _deadlines(job: Job, config: SourceConfig, settled_upto: int, notes: ClockNotes) -> Deadlines | None:
    """Those of the events that are not settled yet; None where nothing expires."""
    if config.acknowledge_within is None:
        return None
    now = time.monotonic()
    deadlines = Deadlines(config.acknowledge_within, config.lease_cap_s, now)
    deadlines.recall(LogReader(job.log_directory), settled_upto, now, notes.received)
    return deadlines


class _NoPandas(MetaPathFinder):
    """Hides pandas from pyarrow, which loads it with the first array if it can.

    The intake has no use for it, and starts a second sooner and 60 MB smaller without.
    """

    def find_spec(self, fullname: str, *_: object) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("the intake does without pandas", name=fullname)


def _take_over_stdin(descriptor: int | None) -> None:
    """Descriptor 0 was the control pipe; from now on it is the run's standard input, or nothing."""
    taken = os.open(os.devnull, os.O_RDONLY) if descriptor is None else descriptor
    os.dup2(taken, 0)
    os.close(taken)


def _fail(job: Job | None, reason: str) -> int:
    reason = redact(reason)
    logger.error("%s", f'source "{job.name}": {reason}' if job else reason)
    if job and LOCKED not in reason:
        before = read_status(job.directory) or Status(0, "failed")
        failed = replace(before, pid=os.getpid(), state="failed", reason=reason, drained=False)
        StatusFile(job.directory).report(failed)
    return 1


if __name__ == "__main__":
    sys.exit(main())
