"""`python -m signoff.intake`: read the job, open everything, run, and say why when it does not work.

Exit codes: 0 the run is over; 1 the source or the log cannot be used (the reason is in the status
and on standard error; trying again later may help).
"""

from __future__ import annotations

import logging
import os
import sys
import time
from dataclasses import replace
from importlib.abc import MetaPathFinder
from pathlib import Path

from signoff.durable import make_directory
from signoff.errors import SignoffError
from signoff.intake.control import Control
from signoff.intake.deadlines import Deadlines
from signoff.intake.job import Job
from signoff.intake.loop import Intake
from signoff.intake.status import Status, StatusFile, read_status
from signoff.ledger import Follower, Ledger
from signoff.log import LogReader, LogWriter
from signoff.pipeline.model import SourceConfig
from signoff.pipeline.secrets import redact
from signoff.sources.contract import Resume, SourceContext
from signoff.watch.logs import set_up_logging

logger = logging.getLogger("signoff.intake")

LOCKED = "[log-locked]"
"""Another intake has the log: the status is that one's, and must not be written over."""


def main() -> int:
    """One intake process, from its job to its end."""
    sys.meta_path.insert(0, _NoPandas())
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
        make_directory(job.directory)
        run(job, control)
    except SignoffError as error:
        return _fail(job, str(error))
    except Exception as error:  # the last place where a reason can be left
        logger.exception('source "%s" failed', job.name)
        return _fail(job, f"{type(error).__name__}: {error}")
    return 0


def run(job: Job, control: Control) -> None:
    """Open the log, the ledger and the source; receive and tell until the run is over."""
    config = job.source_config()
    source = config.build(Path(job.base))  # type: ignore[attr-defined]
    log = LogWriter(job.log_directory, config.log)
    ledger = Ledger(job.ledger) if job.acknowledges else None
    try:
        unit, position = log.last
        settled = ledger.settled_upto(job.name) if ledger else log.next_sequence
        source.open(
            SourceContext(job.name, job.directory, job.once, Path(job.base), LogReader(job.log_directory)),
            Resume(log.next_sequence, unit, position, settled),
        )
        follower = Follower(ledger, job.name) if ledger else None
        deadlines = _deadlines(job, config, settled) if ledger else None
        Intake(source, log, follower, control, StatusFile(job.directory), deadlines).run()
    finally:
        log.close()
        if ledger:
            ledger.close()


def _deadlines(job: Job, config: SourceConfig, settled_upto: int) -> Deadlines | None:
    """Those of the events that are not settled yet; None where nothing expires."""
    if config.acknowledge_within is None:
        return None
    now = time.monotonic()
    deadlines = Deadlines(config.acknowledge_within, config.lease_cap_s, now)
    deadlines.recall(LogReader(job.log_directory), settled_upto, now, time.time())
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
