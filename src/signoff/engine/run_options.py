"""How a pipeline is run; loads nothing, so that a command can say so before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class RunOptions:
    """How a pipeline is run."""

    once: bool = False
    """Take what is there, settle it, end."""
    drain_s: float = 30.0
    """How long what is in flight may take to finish after a request to stop."""
    patience_s: float | None = None
    """With `once`: how long a failing sink is waited for."""
    log_format: Literal["text", "json"] = "text"
