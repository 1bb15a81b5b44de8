"""`throttle`: at most some events of a key in any interval; the others are dropped, and counted.

It is a `dedupe` whose keys have several places: an event takes one that nobody has taken within the interval,
or is dropped. So it is decided, remembered and replayed in the same way (see `dedupe`): durably and before
anything is delivered, and again for the next one when an event that was let through is refused or expires.
"""

from __future__ import annotations

import json
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from signoff.pipeline.durations import Duration
from signoff.transforms.dedupe import Remembering


class ThrottleConfig(Remembering):
    summary: ClassVar[str] = "Let through at most some events of a key in any interval, and drop the others."
    example: ClassVar[str] = "keys: [sensor]\nevents: 1\nevery: 10m\n"
    drops: ClassVar[str] = "throttled"
    type: Literal["throttle"] = "throttle"
    events: int = Field(default=1, ge=1, le=1000)
    """How many events of a key are let through in any interval of `every`. Each one that is dropped is
    compared with so many."""
    every: Annotated[Duration, Field(gt=0, le=366 * 86400)]
    """The interval: after an event was let through, its place is taken for so long. Measured by the times of
    receipt in the log."""

    @property
    def remembers_s(self) -> float:
        return self.every

    @property
    def places(self) -> int:
        return self.events

    @property
    def definition(self) -> str:
        # An object, by which the index tells it from a `dedupe`.
        return json.dumps({"keys": sorted(self.keys), "events": self.events}, ensure_ascii=False)
