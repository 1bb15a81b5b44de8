"""Having dead letters replayed: by the run that is alive, or here; with a bar on a terminal. And what became
of each."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from signoff.cli.reading import load_job_for_reading
from signoff.errors import StateError
from signoff.ledger import DeadLetter, DeadLetters, RunLock
from signoff.operate.replay import End, ReplayReport
from signoff.pipeline.graph import Graph
from signoff.terminal import say

_POLL_S = 0.1
_LOOK_S = 0.5
"""How often the bar looks how many are left, where nobody waits for them otherwise."""


def replay_letters(
    file: Path, graph: Graph, letters: DeadLetters, chosen: list[DeadLetter], wait: bool
) -> None:
    """Have the run do it, or do it here, which then does need the secrets; of a job, leave it to its run."""
    if RunLock(graph.state).held_by() is not None:
        letters.request_replay(chosen)
        if wait:
            _await(graph, letters, chosen)
        return
    if load_job_for_reading(file).is_job:
        letters.request_replay(chosen)  # a row goes where its run puts its rows, so only that run does it
        say("no run of the job is alive; each letter is replayed when its run resumes", err=True)
        return
    from signoff.catalog import default
    from signoff.engine.replay.replayer import replay_now
    from signoff.pipeline.load import load

    whole = load(file, default())
    letters.request_replay(chosen)
    try:
        with _watching(graph, chosen):
            replay_now(whole)
    except BaseException as error:
        if RunLock(graph.state).held_by() is None:
            letters.withdraw(chosen)
            if left := _left(letters, chosen):
                say(f"{left} are half replayed: the next replay or run finishes them", err=True)
            raise
        if not isinstance(error, StateError):
            raise
        if wait:  # a run has begun meanwhile, and sees to them
            _await(graph, letters, chosen)


def _await(graph: Graph, letters: DeadLetters, chosen: list[DeadLetter]) -> None:
    """Wait until the run has resolved them, or is gone. Others may wait for longer: for a pipeline that is
    down."""
    lock = RunLock(graph.state)
    with _Shown(len(chosen), "waiting for the run") as shown:
        while left := _left(letters, chosen):
            shown.left(left)
            if lock.held_by() is None:
                say("the run has ended; what is left is for the next one", err=True)
                return
            time.sleep(_POLL_S)
        shown.left(0)


def _left(letters: DeadLetters, chosen: list[DeadLetter]) -> int:
    """How many of these are being replayed, or were handed on and are not settled yet."""
    waiting = letters.keys(("replaying", "handed"))
    return sum(letter.key in waiting for letter in chosen)


@contextmanager
def _watching(graph: Graph, chosen: list[DeadLetter]) -> Iterator[None]:
    """Show how far a replay is that is done in this process."""
    over = threading.Event()

    def look() -> None:
        with (
            DeadLetters(graph.state / "dead_letters.db", readonly=True) as letters,
            _Shown(len(chosen)) as shown,
        ):
            while not over.wait(_LOOK_S):
                shown.left(_left(letters, chosen))
            shown.left(_left(letters, chosen))

    watcher = threading.Thread(target=look, name="replay-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def print_report(report: ReplayReport, as_json: bool) -> tuple[End, ...]:
    """What became of the letters; those that were not simply delivered are named."""
    if as_json:
        say(json.dumps(report.to_json(), ensure_ascii=False))
    else:
        always = ("asked", "delivered", "failed_again")
        print_counts({name: n for name, n in report.counts.items() if n or name in always}, as_json=False)
    for end in report.ends:
        if end.outcome not in ("delivered", "replayed"):
            what = end.outcome.replace("_", " ")
            say(f"{end.event_id} {what} at {end.stage}: {end.reason}", err=True)
    return report.ends


def print_counts(counts: dict[str, int], as_json: bool) -> None:
    if as_json:
        say(json.dumps(counts))
    else:
        say(", ".join(f"{name.replace('_', ' ')}: {number}" for name, number in counts.items()))


class _Shown:
    """How many of the letters are done: a bar on a terminal, elsewhere a line when the number has changed."""

    def __init__(self, asked: int, what: str = "replaying") -> None:
        self._asked, self._what, self._said = asked, what, -1
        console = Console(stderr=True)
        self._bar = (
            Progress(
                TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
                console=console, transient=True,
            )
            if console.is_terminal
            else None
        )  # fmt: skip
        self._task = self._bar.add_task(what, total=asked) if self._bar else None

    def __enter__(self) -> _Shown:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()

    def left(self, number: int) -> None:
        done = max(0, self._asked - number)
        if done == self._said:
            return
        self._said = done
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done)
        else:
            say(f"{self._what}: {done} of {self._asked} done", err=True)
