"""How much memory processes use, with all that they have started; from /proc, so on Linux only."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

_PROC = Path("/proc")


def resident_bytes(processes: Mapping[str, int]) -> dict[str, int]:
    """By name, the memory of a process and of its descendants, but for those that have a name themselves."""
    children = _children()
    if not children:
        return {}
    named = set(processes.values())
    return {name: _of_tree(pid, children, named - {pid}) for name, pid in processes.items()}


def _of_tree(pid: int, children: Mapping[int, list[int]], others: set[int]) -> int:
    below = [child for child in children.get(pid, []) if child not in others]
    return _of_one(pid) + sum(_of_tree(child, children, others) for child in below)


def _of_one(pid: int) -> int:
    try:
        pages = int((_PROC / str(pid) / "statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0  # it has just ended
    return pages * os.sysconf("SC_PAGE_SIZE")


def _children() -> Mapping[int, list[int]]:
    """The children of every process."""
    found: dict[int, list[int]] = defaultdict(list)
    if not _PROC.is_dir():
        return {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            try:
                # Behind the name, which may hold anything: state, parent.
                found[int((entry / "stat").read_text().rpartition(")")[2].split()[1])].append(int(entry.name))
            except (OSError, ValueError, IndexError):
                continue
    return found
