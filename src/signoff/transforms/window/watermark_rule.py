"""How the watermark of a window follows from the times of its events."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class WatermarkRule:
    """How the mark follows from the times of events."""

    lateness: int
    """How long after its end a window still takes events."""
    last_events: int | None = None
    """The mark follows the oldest of so many newest events; None: the latest time of all."""
    idle_after: float | None = None
    """Seconds without events after which open windows are closed; None: they wait for events."""
