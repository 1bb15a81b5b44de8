"""Whether an event would be settled now, as an intake can tell a client who asks: `GET /ready`.

The engine says in `state/engine.json` which of its parts keep the events of a source from being settled (see
`engine/readiness.py`); here it is seen whether there is an engine at all. What the intake itself knows, that
its log is full or the run stops, is added by the source.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

ENGINE = "engine"
_SILENT_S = 10.0
"""An engine writes twice a second."""


@dataclass(frozen=True, slots=True)
class Readiness:
    """Of one source; called by any thread."""

    state: Path
    source: str

    def __call__(self) -> Mapping[str, str]:
        """Who is not ready, and why."""
        try:
            found: Any = orjson.loads((self.state / "engine.json").read_bytes())
            state, pid, updated_at = found["state"], found["pid"], found["updated_at"]
        except (OSError, ValueError, KeyError, TypeError):
            return {ENGINE: "it has not started yet"}
        if state == "stopped" or not _lives(pid):
            return {ENGINE: "it is not running; the run starts it again"}
        if state == "starting":
            return {ENGINE: "it is starting"}
        if state == "draining":
            return {ENGINE: "the pipeline is stopping"}
        if (silent := time.time() - updated_at) > _SILENT_S:
            return {ENGINE: f"no sign of life for {silent:.0f} s"}
        reasons = found.get("not_ready", {}).get(self.source, {})
        return {str(who): str(why) for who, why in reasons.items()}


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
