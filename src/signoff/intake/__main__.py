"""`python -m signoff.intake`: read the instructions, open everything, run, and say why when it does not work.

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
from typing import TYPE_CHECKING

from signoff.durable import make_directory
from signoff.errors import SignoffError
from signoff.intake.clock_notes import ClockNotes
from signoff.intake.control import IntakeControl
from signoff.intake.deadlines import Deadlines
from signoff.intake.instructions import Instructions
from signoff.intake.loop import Intake
from signoff.intake.readiness import Readiness
from signoff.intake.source_type_notes import own_place
from signoff.intake.status import Status, StatusFile, read_status
from signoff.ledger import Follower, Ledger
from signoff.ledger.store import no_room
from signoff.log import LogReader, LogWriter
from signoff.logs import set_up_logging
from signoff.pipeline.model import SourceConfig
from signoff.pipeline.secrets import redact
from signoff.private import keep_private
from signoff.sinks.handed_contexts import TRACEPARENT
from signoff.sources import TYPES
from signoff.sources.contract import Resume, Source, SourceContext

if TYPE_CHECKING:
    from signoff.intake.traces import IntakeTraces

logger = logging.getLogger("signoff.intake")

NO_ROOM_S = 1.0
"""How soon to try again what failed for lack of room."""
LOCKED = "[log-locked]"
"""Another intake has the log: the status is that one's, and must not be written over."""


def main() -> int:
    """One intake process, from its instructions to its end."""
    sys.meta_path.insert(0, _NoPandas())
    keep_private()
    control = IntakeControl(os.dup(0))
    control.listen()
    set_up_logging("text")
    try:
        instructions = Instructions.decode(control.read_instructions())
    except SignoffError as error:
        return _fail(None, str(error))
    set_up_logging(instructions.log_format)
    _take_over_stdin(instructions.stdin_fd)
    try:
        while not _run_with_room(instructions, control):
            pass
    except SignoffError as error:
        return _fail(instructions, str(error))
    except Exception as error:  # the last place where a reason can be left
        logger.exception('source "%s" failed', instructions.name)
        return _fail(instructions, f"{type(error).__name__}: {error}")
    return 0


def _run_with_room(instructions: Instructions, control: IntakeControl) -> bool:
    """Run to the end of the run; false when that failed for lack of room, and there may be some now."""
    try:
        make_directory(instructions.directory)
        run(instructions, control)
    except (OSError, SignoffError, sqlite3.Error) as error:
        if not no_room(error):
            raise
        reason = redact(str(error))
        logger.warning('source "%s" cannot be opened: there is no room: %s', instructions.name, reason)
        StatusFile(instructions.directory).report(Status(os.getpid(), "held", reason, reason, time.time()))
        return control.over(NO_ROOM_S)
    return True


def run(instructions: Instructions, control: IntakeControl) -> None:
    """Open the log, the ledger and the source; receive and tell until the run is over."""
    config = instructions.source_config()
    if instructions.traces is not None:
        config = config.with_header(TRACEPARENT)
    source = _source(instructions, config)
    log = LogWriter(instructions.log_directory, config.log)
    ledger = Ledger(instructions.ledger) if instructions.acknowledges else None
    traces: IntakeTraces | None = None
    try:
        unit, position = own_place(instructions.directory, instructions.type, log.next_sequence, log.last)
        settled = ledger.settled_upto(instructions.name) if ledger else log.next_sequence
        ready = (
            Readiness(Path(instructions.state), instructions.name)
            if instructions.engine and instructions.acknowledges
            else dict
        )
        context = SourceContext(
            instructions.name,
            instructions.directory,
            instructions.once,
            Path(instructions.base),
            LogReader(instructions.log_directory),
            state=Path(instructions.state),
            not_ready=ready,
        )
        try:
            source.open(context, Resume(log.next_sequence, unit, position, settled))
        except BaseException:
            with suppress(Exception):  # half open: it may be tried again in this process
                source.close()
            raise
        follower = Follower(ledger, instructions.name) if ledger else None
        traces = _traces(instructions, config, log.next_sequence)
        notes = ClockNotes(instructions.directory)
        deadlines = _deadlines(instructions, config, settled, notes) if ledger else None
        Intake(
            source, log, follower, control, StatusFile(instructions.directory), deadlines, notes, traces
        ).run()
    finally:
        if traces is not None:
            traces.close()
        log.close()
        if ledger:
            ledger.close()


def _source(instructions: Instructions, config: SourceConfig) -> Source:
    if instructions.type in TYPES:
        return config.build(Path(instructions.base))  # type: ignore[attr-defined,no-any-return]
    from signoff.installed_types import build  # takes its time to load, which most intakes save

    return build(config, Path(instructions.base))  # type: ignore[no-any-return]


def _deadlines(
    instructions: Instructions, config: SourceConfig, settled_upto: int, notes: ClockNotes
) -> Deadlines | None:
    """Those of the events that are not settled yet; None where nothing expires."""
    if config.acknowledge_within is None:
        return None
    now = time.monotonic()
    deadlines = Deadlines(config.acknowledge_within, config.lease_cap_s, now)
    deadlines.recall(LogReader(instructions.log_directory), settled_upto, now, notes.received)
    return deadlines


def _traces(instructions: Instructions, config: SourceConfig, end: int) -> IntakeTraces | None:
    """What makes spans of the source's events; None where nobody wants any: then nothing is loaded for it."""
    if (settings := instructions.trace_settings()) is None:
        return None
    from signoff.intake.traces import IntakeTraces
    from signoff.traces.chosen import Chooser
    from signoff.traces.export import Exporter
    from signoff.traces.spans import Where

    name = instructions.name
    exporter = Exporter(settings, instructions.pipeline, f"intake {name}")
    log, chooser = LogReader(instructions.log_directory), Chooser(name, settings)
    traces = IntakeTraces(Where(name, config.type), log, chooser, exporter)
    before = read_status(instructions.directory)
    traces.recall(before.settled_sequence if before else 0, end)
    return traces


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


def _fail(instructions: Instructions | None, reason: str) -> int:
    reason = redact(reason)
    logger.error("%s", f'source "{instructions.name}": {reason}' if instructions else reason)
    if instructions and LOCKED not in reason:
        before = read_status(instructions.directory) or Status(0, "failed")
        failed = replace(before, pid=os.getpid(), state="failed", reason=reason, drained=False)
        StatusFile(instructions.directory).report(failed)
    return 1


if __name__ == "__main__":
    sys.exit(main())
