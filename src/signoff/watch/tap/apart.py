"""A tap in a process of its own, for who must not start Spark in theirs: a web page."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from signoff.errors import EngineError
from signoff.watch.tap.taps import LIMIT


def tap_apart(
    file: Path, node: str, *, where: str | None = None, limit: int = LIMIT, timeout_s: float = 60.0
) -> list[dict[str, Any]]:
    """What `signoff tap FILE NODE --json` prints: one dict a row, as `TappedRow.as_dict` gives it.

    Raises EngineError with what it says when it fails, or has not ended in time; it is killed then. `where`
    is SQL, which may call whatever Spark can: let nobody give it who may not run code.
    """
    command = [sys.executable, "-m", "signoff.cli", "tap", "--json", f"--limit={limit}", str(file), node]
    command += [] if where is None else [f"--where={where}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        raise EngineError(f'the rows of "{node}" were not there after {timeout_s:.0f} s') from None
    if done.returncode:
        raise EngineError(done.stderr.strip() or f"signoff tap ended with {done.returncode}")
    return [json.loads(line) for line in done.stdout.splitlines()]
