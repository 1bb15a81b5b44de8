"""The state directory of a job: whose it is, who works on it, and what a run keeps there for itself.

state/jobs/<run>/        snapshot and parts of a run, until its rows are in the logs
state/jobs/<run>.ids     under which ids its rows are sent, until it is done (see `repeats`)
state/jobs/<key>.lock    held by the process that does the run
state/lock               held while rows are delivered: one run at a time
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from signoff.durable import write_whole
from signoff.errors import StateError
from signoff.ledger.run_lock import RunLock
from signoff.pipeline.graph import Graph
from signoff.private import make_private, make_state

_LOOK_S = 0.1
Stop = Callable[[], bool]


class RunGoesOn(StateError):
    """Another process does this run."""


def claim(graph: Graph) -> None:
    """The state directory is this job's, or becomes it. Raises StateError if it is another's."""
    make_state(graph.state)
    owner = graph.state / "pipeline"
    name = owner.read_text() if owner.exists() else ""
    if not name:
        write_whole(owner, graph.name.encode())
    elif name != graph.name:
        raise StateError(
            f'{graph.state} holds the state of "{name}", not of "{graph.name}"; '
            "give this job a state directory of its own (state: ./state_of_this)"
        )
    make_private(graph.state / "jobs")


def run_directory(state: Path, run: str) -> Path:
    return state / "jobs" / short(run)


def short(name: str) -> str:
    """A name for files: those of runs hold characters that mean something in addresses."""
    return hashlib.sha256(name.encode()).hexdigest()[:20]


def fresh_directory(state: Path, run: str) -> Path:
    """Without what an earlier try has left."""
    directory = run_directory(state, run)
    shutil.rmtree(directory, ignore_errors=True)
    make_private(directory)
    return directory


def forget_directory(state: Path, run: str) -> None:
    shutil.rmtree(run_directory(state, run), ignore_errors=True)


@contextmanager
def run_lock(state: Path, key: str, *, waits: Stop | None = None) -> Iterator[None]:
    """One process does a run. `waits`: wait for another until this says stop; without: raise RunGoesOn."""
    file = os.open(state / "jobs" / f"{short(key)}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if waits is None or waits():
                    raise RunGoesOn(f'the run "{key}" is being done by another process') from None
                time.sleep(_LOOK_S)
        yield
    finally:
        os.close(file)


def is_being_done(state: Path, key: str) -> bool:
    """Whether a process does a run now: to ask first is cheaper than to start one that says so."""
    try:
        with run_lock(state, key):
            return False
    except RunGoesOn:
        return True
    except FileNotFoundError:  # nobody has done any yet
        return False


@contextmanager
def delivery_lock(state: Path, stop: Stop) -> Iterator[None]:
    """Held while rows go to the logs and the engine works on them; waits for other runs of the job."""
    lock = RunLock(state)
    while not lock.try_acquire():
        if stop():
            raise StateError(f"{state} is in use by the run with pid {lock.held_by()}")
        time.sleep(_LOOK_S)
    try:
        yield
    finally:
        lock.release()
