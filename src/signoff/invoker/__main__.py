"""`python -m signoff.invoker`: starts the runs that rows ask for, as a process of its own under `signoff
run`.

Its job is that of the engine: one line of JSON on standard input, whose end means that the run is over or
gone. Runs that go on end with it, and go on when the next invoker asks for them again. SIGTERM means: begin
no more.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import sys
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from signoff.errors import PipelineError, SignoffError
from signoff.intake.control import IntakeControl
from signoff.invoker.invoker import Invoker
from signoff.invoker.lookup import STATUS
from signoff.link.job_sink import JobSinkConfig, invoker_place
from signoff.logs import set_up_logging
from signoff.pipeline.graph import Graph
from signoff.pipeline.job_settings import Value
from signoff.pipeline.overlays import Layers
from signoff.pipeline.secrets import redact
from signoff.private import make_private, opener

logger = logging.getLogger("signoff.invoker")

_LOOK_S = 0.1
_TROUBLE_S = 1.0
_STATUS_S = 0.5


def main() -> int:
    control = IntakeControl(os.dup(0))
    control.listen()
    set_up_logging("text")
    try:
        job = json.loads(control.read_instructions())
        set_up_logging(job["log_format"])
        graph = graph_of(job)
    except PipelineError as error:  # the engine says why
        logger.debug("%s", error)
        return 2
    except SignoffError as error:
        logger.error("%s", redact(str(error)))
        return 1
    _take_over_stdin()
    return run(graph, control)


def run(graph: Graph, control: IntakeControl) -> int:
    configs = {name: node.config for name, node in graph.sinks.items()}
    asking = {name: config for name, config in configs.items() if isinstance(config, JobSinkConfig)}
    locks = []
    for name in asking:
        directory = invoker_place(graph.state, name).notes
        make_private(directory)
        if (lock := _locked(directory, control)) is None:
            return 0
        locks.append(lock)
    invokers = [
        Invoker(graph.name, name, config, graph.base, graph.state, load_job)
        for name, config in asking.items()
    ]
    try:
        _look_after(invokers, graph.state, control)
    finally:
        for invoker in invokers:
            invoker.close()
        for lock in locks:
            os.close(lock)
    return 0


def _look_after(invokers: list[Invoker], state: Path, control: IntakeControl) -> None:
    said, wait, written = dict[str, str](), 0.0, 0.0
    while not control.over(wait):
        wait, trouble = _LOOK_S, False
        for invoker in invokers:
            invoker.stopping = control.stop_requested
            try:
                if invoker.step():
                    wait = 0.0
                said.pop(invoker.sink, None)
            except Exception as error:  # noqa: BLE001  a full disk, say: what was not done is done next time
                trouble = True
                _say(invoker.sink, error, said)
        if trouble:
            wait = _TROUBLE_S
        if time.monotonic() >= written + _STATUS_S:
            written = time.monotonic()
            for invoker in invokers:
                _report(state, invoker)


def _say(sink: str, error: Exception, said: dict[str, str]) -> None:
    """Once, however often it comes. What nobody has foreseen must not end the look after the other sinks."""
    foreseen = isinstance(error, SignoffError)
    text = redact(str(error) if foreseen else f"{type(error).__name__}: {error}")
    if said.get(sink) != text:
        logger.warning('sink "%s": %s', sink, text)
        if not foreseen:
            logger.warning("%s", redact("".join(traceback.format_exception(error))))
    said[sink] = text


def _report(state: Path, invoker: Invoker) -> None:
    """For people; a full disk is no reason to stop."""
    path = invoker_place(state, invoker.sink).notes / STATUS
    part = path.with_suffix(".part")
    with suppress(OSError):
        with open(part, "wb", opener=opener) as file:
            file.write(orjson.dumps({"pid": os.getpid(), **invoker.counts()}))
        part.rename(path)


def _locked(directory: Path, control: IntakeControl) -> int | None:
    """Wait until an invoker before this one, whose run is gone, has ended its runs; None if this one's is
    over."""
    lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError:
            if control.over(_LOOK_S):
                os.close(lock)
                return None


def load_job(
    file: Path, values: Mapping[str, Value] | None = None, texts: Mapping[str, str] | None = None
) -> Graph:
    """A job as its file is now, or was when its texts were read."""
    from signoff.catalog import default
    from signoff.pipeline.job_check import given
    from signoff.pipeline.load import load

    return load(file, default(), {**os.environ, **given(values or {})}, layers=Layers(), texts=texts)


def graph_of(job: Mapping[str, Any]) -> Graph:
    """The pipeline the run was started with, whatever stands in its files by now."""
    from signoff.catalog import default
    from signoff.pipeline.load import load

    return load(Path(job["file"]), default(), layers=Layers.from_json(job["layers"]), texts=job["texts"])


def _take_over_stdin() -> None:
    """Descriptor 0 was the control pipe: a run that is started must not hold it open."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)


if __name__ == "__main__":
    sys.exit(main())
