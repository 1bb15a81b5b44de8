"""Stopping all processes of a run for a moment, so that its files can be copied as they are at that moment.

What is copied while everything stands still is what a loss of all processes at that moment would have left,
and that is what a run can always go on from. A process that is stopped cannot start others, so the tree is
gone through from the top until nothing new is found.

Nobody is left standing: a guard process lets all go on when the one that stopped them has ended, however that
came, and after `MOST_S` in any case. It does so by process id and start time, never by a name.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from signoff.errors import StateError

MOST_S = 60.0
_ROUNDS = 20
_GUARD = """
import os, select, signal, sys
most = float(sys.argv[1])
def alive(pid, start):
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[19].decode() == start
    except OSError:
        return False
known = {}
print("ready", flush=True)
while True:
    ready, _, _ = select.select([0], [], [], most)
    line = os.read(0, 65536) if ready else b""
    if not line:
        break
    for each in line.decode().split():
        pid, _, start = each.partition(":")
        known[int(pid)] = start
for pid, start in known.items():
    if alive(pid, start):
        try:
            os.kill(pid, signal.SIGCONT)
        except OSError:
            pass
"""


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """Everything that a process has started, and itself, stands still within the block.

    Raises StateError where that cannot be done; then nothing stands still.
    """
    if not Path("/proc/self/stat").exists():
        raise StateError("a run can be backed up while it goes on only on Linux; stop it first")
    guard = subprocess.Popen(
        [sys.executable, "-I", "-c", _GUARD, str(MOST_S)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is not for it
    )
    assert guard.stdin is not None and guard.stdout is not None
    try:
        guard.stdout.readline()
        _stop_tree(pid, guard.stdin.fileno())
        yield
        if guard.poll() is not None:
            raise StateError(f"the run could not stand still for more than {MOST_S:g} s; stop it first")
    finally:
        guard.stdin.close()  # whereupon it lets all of them go on
        guard.wait()
        guard.stdout.close()


def _stop_tree(pid: int, told: int) -> None:
    stopped: dict[int, str] = {}
    for _ in range(_ROUNDS):
        new = [each for each in _tree(pid) if each not in stopped]
        if not new and pid in stopped:
            return
        for each in new:
            start = _start(each)
            if start is None:
                continue
            os.write(told, f"{each}:{start} ".encode())  # told first: a kill in between must not leave it
            try:
                os.kill(each, signal.SIGSTOP)
            except ProcessLookupError:
                continue
            except PermissionError:
                raise StateError(f"the run with pid {pid} is another user's; stop it first") from None
            stopped[each] = start
    raise StateError(f"the run with pid {pid} starts processes again and again; stop it first")


def _tree(pid: int) -> list[int]:
    """A process and all it has started, those nearer to it first."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208 - names only, and quickly
        if entry.isdigit() and (fields := _stat(int(entry))) is not None:
            children.setdefault(int(fields[1]), []).append(int(entry))
    found, place = [pid], 0
    while place < len(found):
        found += children.get(found[place], ())
        place += 1
    return found


def _start(pid: int) -> str | None:
    fields = _stat(pid)
    return None if fields is None else fields[19]


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat behind the name: state, parent, …, start time (the 20th)."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].decode().split()
    return None
