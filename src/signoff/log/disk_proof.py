"""Executor: prove that this machine sees the driver's disk, before anything local is read or written.

On a cluster the paths of a pipeline mean the driver's disk, and an executor that does not mount it would
read nothing, or write where nobody looks. So the engine leaves a file with a random name and content in
every directory that executors use (see `signoff.engine.spark.disk_marks`), and tells executors where:

    executor   reads that file in every place                      each task: the driver's files are here
    executor   writes a greeting into every place, the home last   once per Python worker
    driver     sees the greeting in every place, and answers       ... and what is written here is seen there

Invariant: a task that returned from `prove_shared` reads and writes the driver's files, or the pipeline
runs on one machine and there is nothing to prove. Otherwise it fails, with `[not-shared]` and the reason.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from signoff.errors import StateError

VARIABLE = "SIGNOFF_SHARED"
"""In the environment of every executor on a cluster: what is to be proved, as JSON."""
NOT_SHARED = "[not-shared]"
"""Begins every error of this module; Spark hands on only the text."""
STAMP = "identity"
"""In the directory of a log: to which ledger it belongs (see `signoff.engine.state_dir.identity`)."""
_ANSWER_S = 60.0
"""A network file system may show new files only after half a minute."""
_POLL_S = 0.05

_proved: set[str] = set()
"""Tokens this process has greeted the driver with, and was answered."""


class NotShared(StateError):
    """This machine does not see the driver's disk."""


@dataclass(frozen=True)
class SharedPlaces:
    """What executors are to prove."""

    token: str
    """Random, new with each session."""
    home: str
    """The place, within the state directory, where the driver answers."""
    places: Sequence[str]
    """All directories that executors read or write; `home` is one of them."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Further files that executors must find as they are here: what each one's content sums up to."""

    def encode(self) -> str:
        return json.dumps(asdict(self))

    @property
    def mark(self) -> str:
        """Name of the driver's file in each place; its content is the token."""
        return f".signoff-shared-{self.token}"

    def greeting(self, worker: str) -> str:
        return f".signoff-greeting-{self.token}-{worker}"

    def answer(self, worker: str) -> str:
        return f".signoff-answer-{self.token}-{worker}"


def prove_shared(environ: Mapping[str, str] = os.environ, answer_s: float = _ANSWER_S) -> None:
    """Executor, at the beginning of each task that opens local paths. Costs a few small reads."""
    told = environ.get(VARIABLE)
    if not told:
        return
    shared = SharedPlaces(**json.loads(told))
    for place in shared.places:
        _read_mark(shared, Path(place))
    if shared.token not in _proved:
        _compare_files(shared)
        _greet(shared, answer_s)
        _proved.add(shared.token)


def log_identity(log: Path) -> str:
    """Whose log a directory holds, as its stamp says; '' where there is none."""
    try:
        return str(json.loads((log / STAMP).read_bytes())["state"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def require_same_log(log: Path, identity: str) -> None:
    """Executor: refuse to read a directory that is not the one the driver has planned with. A program may
    bring a session on any cluster, of which the driver's side of a data source knows nothing."""
    if not log.is_dir():
        raise _error(log, "there is no such directory here")
    if identity and (found := log_identity(log)) != identity:
        raise _error(log, f"the log here is {'another one' if found else 'not stamped'}")


def not_shared(error: BaseException) -> str | None:
    """Driver: what an executor that does not see the disk said, if a job failed by that; then no event is to
    blame."""
    _, found, said = str(error).partition(NOT_SHARED)
    return f"{found}{said.splitlines()[0]}" if found else None


def _read_mark(shared: SharedPlaces, place: Path) -> None:
    try:
        content = (place / shared.mark).read_text()
    except OSError as error:
        raise _error(place, f"a file the driver wrote there cannot be read: {error.strerror}") from error
    if content != shared.token:
        raise _error(place, "a file the driver wrote there has another content")


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _compare_files(shared: SharedPlaces) -> None:
    for name, content in shared.files.items():
        try:
            found = digest(Path(name))
        except OSError as error:
            raise _file_error(name, error.strerror or "it cannot be read") from error
        if found != content:
            raise _file_error(name, "its content is another one")


def _file_error(name: str, why: str) -> NotShared:
    return NotShared(
        f"{NOT_SHARED} {name} is needed on every worker as it is at the driver, and it is not on "
        f"{socket.gethostname()}: {why}; put the same file at the same path there (no event was touched)"
    )


def _greet(shared: SharedPlaces, answer_s: float) -> None:
    """Write into every place, and wait for the driver to have seen it."""
    worker = uuid.uuid4().hex
    home = Path(shared.home)
    for place in [*(Path(each) for each in shared.places if each != shared.home), home]:
        try:
            (place / shared.greeting(worker)).write_text(worker)
        except OSError as error:
            raise _error(place, f"it cannot be written to: {error.strerror}") from error
    answer = shared.answer(worker)
    until = time.monotonic() + answer_s
    while time.monotonic() < until:
        # By listing: a name that was not there a moment ago may be remembered as missing.
        if any(file.name == answer for file in home.iterdir()):
            with suppress(FileNotFoundError):
                missing = (home / answer).read_text()
                if missing:
                    raise _error(Path(missing), "the driver does not see what is written there")
                return
        time.sleep(_POLL_S)
    raise _error(home, f"the driver has not seen within {answer_s:.0f} s what was written there")


def _error(place: Path, why: str) -> NotShared:
    return NotShared(
        f"{NOT_SHARED} {place} is not on a disk that {socket.gethostname()} shares with the driver: {why}; "
        "mount it on every worker at the same path (nothing was read or written there)"
    )
