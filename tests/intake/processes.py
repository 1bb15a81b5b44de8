"""A real intake process for tests: started, watched, stopped, killed."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path

from pyroaring import BitMap64

from signoff.errors import LogError
from signoff.intake import Instructions, Status, read_status
from signoff.ledger import Ledger, Outcome, RowOutcome, RowRef
from signoff.ledger.batch_state import Done, Untried
from signoff.log import LogReader
from signoff.pipeline.model import SourceConfig
from signoff.pipeline.trace_settings import TraceSettings
from tests.intake.forked import Forked
from tests.servers import PATIENCE_S


class _Fresh:
    """The process as a run starts it, given a standard input to read."""

    def __init__(self, stdin: int) -> None:
        command = [sys.executable, "-m", "signoff.intake"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=(stdin,)
        )
        assert self._process.stdin is not None and self._process.stderr is not None
        self.pid = self._process.pid
        self.stdin, self.stderr = self._process.stdin, self._process.stderr
        self.poll, self.wait = self._process.poll, self._process.wait


class IntakeProcess:
    """`python -m signoff.intake` for one source named `incoming`."""

    def __init__(
        self, base: Path, config: SourceConfig, *, once: bool = False, acknowledges: bool = True,
        stdin: int | None = None, file_size_limit: int | None = None, traces: TraceSettings | None = None,
    ) -> None:  # fmt: skip
        self.instructions = Instructions.of(
            "incoming", config, state=base / "state", base=base, once=once, acknowledges=acknowledges,
            stdin_fd=stdin, pipeline="tested", traces=traces,
        )  # fmt: skip
        self.process = _Fresh(stdin) if stdin is not None else Forked()
        if file_size_limit is not None:
            self.limit_file_size(file_size_limit)
        self.process.stdin.write(self.instructions.encode())
        self.process.stdin.flush()

    def limit_file_size(self, size: int) -> None:
        """No file may grow beyond this: to the process, a full disk."""
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    @property
    def status(self) -> Status:
        """What this process last said; nothing a process before it has said."""
        status = read_status(self.instructions.directory)
        return status if status and status.pid == self.process.pid else Status(self.process.pid, "receiving")

    def wait_for(self, condition: Callable[[Status], bool]) -> Status:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            status = self.status
            if condition(status):
                return status
            assert self.process.poll() is None, f"it ended: {self.error()}"
            assert time.monotonic() < deadline, f"this did not happen in time: {status}"
            time.sleep(0.002)

    def wait_for_events(self, count: int) -> Status:
        return self.wait_for(lambda status: status.durable_sequence >= count)

    def wait_for_log(self, count: int) -> int:
        """Wait for the log itself, which knows sooner than the status; returns its head."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            with contextlib.suppress(LogError):
                head = LogReader(self.instructions.log_directory).head()
                if head >= count:
                    return head
            assert self.process.poll() is None, f"it ended: {self.error()}"
            assert time.monotonic() < deadline, f"the log has no {count} events"

    def wait_for_state(self, state: str) -> Status:
        return self.wait_for(lambda status: status.state == state)

    def stop(self) -> None:
        os.kill(self.process.pid, signal.SIGTERM)

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self._reap()

    def end(self) -> int:
        """End of its input; returns the exit code."""
        self.process.stdin.close()
        code = self.process.wait(PATIENCE_S)
        self._reap()
        return code

    def error(self) -> str:
        return self.process.stderr.read().decode()

    def _reap(self) -> None:
        self.process.wait(PATIENCE_S)
        for pipe in (self.process.stdin, self.process.stderr):
            pipe.close()

    def __enter__(self) -> IntakeProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGKILL)
        self._reap()


def logged(base: Path) -> list[bytes]:
    """The payloads in the log, in order."""
    reader = LogReader(base / "state" / "log" / "incoming")
    return [
        payload
        for _, batch in reader.read(reader.first(), reader.head())
        for payload in batch.column("payload").to_pylist()
    ]


def settle(
    base: Path,
    start: int,
    end: int,
    *,
    owed: set[int] | None = None,
    refused: str = "",
    for_now: Collection[int] = (),
) -> None:
    """What the engine does when the sinks have answered for a batch."""
    still = BitMap64(owed or ())
    delivered = BitMap64() if refused else BitMap64(range(start, end)) - still
    outcomes: list[RowOutcome] = []
    if refused:
        outcomes = [
            RowOutcome(RowRef(n), "archive", Outcome.REFUSED, refused, n in for_now)
            for n in range(start, end)
        ]
    with Ledger(base / "state" / "ledger.db") as ledger:
        ledger.open_batch("incoming", start, end, ["archive"])
        ledger.record(
            "incoming", start, end, delivered=delivered, outcomes=outcomes,
            sinks={"archive": Untried() if still else Done()}, owed=still,
        )  # fmt: skip
