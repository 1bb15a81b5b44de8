"""What steps have in common that go by the time of events: when time has come how far, and what is late."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import Field, model_validator

from signoff.pipeline.durations import Duration
from signoff.pipeline.model import Config, Names
from signoff.transforms.contract import Transform
from signoff.transforms.window.bounds import Spread
from signoff.transforms.window.watermark_rule import WatermarkRule

_MICROS = 1_000_000


class LastEvents(Config):
    """Time has come as far as the oldest of the newest events."""

    last_events: int = Field(ge=1)
    """How many of the newest events are looked at."""


class WithLate(Transform):
    """A step with a second output, for late events."""

    @property
    def outputs(self) -> tuple[str, ...]:
        return ("late",)

    @property
    def has_main_output(self) -> bool:
        return True


class EventTimeConfig(WithLate, ABC):
    """A step whose state is kept by keys until the watermark has passed what it is about."""

    time: str | None = None
    """Column with the time of the event (TIMESTAMP). Without it, the time of receipt. An event whose time is
    null, before `earliest` or more than `ahead` after its receipt is a dead letter."""
    keys: Names = ()
    """Columns: one result for each combination of their values."""
    allowed_lateness: Annotated[Duration, Field(ge=0)] = 0
    """How far behind an event may be: nothing is closed before time has come this far beyond its end."""
    watermark: Literal["bounded"] | LastEvents = "bounded"
    """How far time has come: `bounded`, to the latest event; `{last_events: N}`, to the oldest among the
    newest N events that were in time."""
    idle_after: Annotated[Duration, Field(gt=0)] | None = None
    """When no event has come to it for so long, what is open is closed; null waits for the events that
    say that their time is over. With several sources, one that is silent for so long is not waited for. One
    that is held back (its log is full, too many of its events are unacknowledged) is not silent."""
    earliest: datetime = datetime(1971, 1, 1, tzinfo=UTC)
    """Times before are not believed: clocks that were never set begin at the epoch."""
    ahead: Annotated[Duration, Field(gt=0)] = 86_400
    """How far after its receipt the time of an event may lie: one from the future would close everything."""

    @model_validator(mode="after")
    def _believes_some_times(self) -> EventTimeConfig:
        if self.earliest.timestamp() <= 0:
            raise ValueError('"earliest" must be after 1970-01-01')
        return self

    @property
    def needed_outputs(self) -> tuple[str, ...]:
        return ()

    @property
    def lets_go(self) -> bool:
        return self.idle_after is not None

    @property
    def progress(self) -> WatermarkRule:
        number = None if self.watermark == "bounded" else self.watermark.last_events
        return WatermarkRule(round(self.allowed_lateness * _MICROS), number, self.idle_after)

    @property
    def values(self) -> Mapping[str, str]:
        """Spark SQL aggregates whose arguments are handed on with an event."""
        return {}

    @property
    @abstractmethod
    def panes(self) -> Spread:
        """What the time of an event belongs to."""

    @property
    @abstractmethod
    def shape(self) -> dict[str, object]:
        """What the state depends on: with another one it cannot be gone on with."""
