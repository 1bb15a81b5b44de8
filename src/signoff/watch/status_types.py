"""The form of a pipeline's status, as `signoff status --json` prints it. Times are ISO 8601 in UTC."""

from __future__ import annotations

from typing import Any, TypedDict


class HeldBack(TypedDict):
    """Who holds a source back."""

    by: str
    """intake: no room, or too much in flight. engine: sinks that wait."""
    reason: str
    since: str | None
    seconds: float


class SourceStatus(TypedDict):
    """One source: its account, and what its intake does."""

    received: int
    in_flight: int
    delivered: int
    dropped: int
    dead_lettered: int
    refused: int
    expired: int
    oldest_in_flight: str | None
    oldest_in_flight_seconds: float | None
    ignored: int
    """Outcomes that came for events settled already."""
    rate: float | None
    """Events a second, while a run is alive."""
    intake: str | None
    held_back: bool
    held: list[HeldBack]
    reason: str
    """What the intake says besides its state; '' if nothing."""


class SinkStatus(TypedDict):
    """One sink."""

    rows: int
    """Rows that it has taken."""
    owes: int
    """Events of open batches that it has not taken all rows of; of a batch that no pass has ended of, all."""
    failing_since: str | None
    failing_seconds: float | None
    last_error: str


class LeftAt(TypedDict):
    """Rows that left the pipeline undelivered, at one stage for one reason."""

    source: str
    stage: str
    outcome: str
    reason: str
    rows: int


class LateBy(TypedDict):
    """Late events with one value of a key."""

    value: Any
    late: int


class WindowStatus(TypedDict):
    """One window step."""

    closed_upto: str | None
    closed_upto_seconds: float | None
    open: bool
    events: int
    late: int
    late_by: dict[str, list[LateBy]]


class FoldStatus(TypedDict):
    """One fold step."""

    open_groups: int
    next_ends_at: str | None


class Status(TypedDict):
    """A pipeline in one moment. What is by name is in the order of the graph."""

    pipeline: str
    alive: bool
    pid: int | None
    not_run_here_since: str
    """Where the state was last used, if no run has begun here since; ''."""
    engine: str | None
    sources: dict[str, SourceStatus]
    stranded: dict[str, dict[str, int]]
    """Accounts of sources that are not in the pipeline any more, with events in flight."""
    sinks: dict[str, SinkStatus]
    left_at: list[LeftAt]
    buffers: dict[str, dict[str, Any]]
    windows: dict[str, WindowStatus]
    folds: dict[str, FoldStatus]
    dedupes: dict[str, dict[str, Any]]
    jobs: dict[str, Any]
    dead_letters: int
    gone: dict[str, dict[str, int]]
    waits_for_gone: list[str]
