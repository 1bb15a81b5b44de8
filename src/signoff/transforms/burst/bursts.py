"""When events of one key are a burst, and when that is over.

An event belongs to a burst if it is one of `count` events that lie within `within`: the last of them less
than that after the first. Such groups that share an event are one burst, so it lasts as long as the rate
does. That is a property of the events alone: it does not depend on the order in which they come, nor on how
they come in batches. What depends on the order is when a burst is *raised*: as soon as the first such group
is complete. Two bursts that were raised both stay two when a later event turns out to have been between them;
it is counted in the earlier one.

No event before the watermark comes. So a burst has *ended* when the watermark is `within` or more behind its
last event: no group that this event is in can still be completed.

Nothing here knows Spark. Times are microseconds since the epoch.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Rules:
    """What a burst is."""

    count: int
    within: int


@dataclass
class Burst:
    """One that was raised and has not ended."""

    begin: int
    """Its first event when it was raised, by which it is known from then on."""
    first: int
    last: int
    events: int


@dataclass(frozen=True)
class BurstChange:
    """What is told of a burst: it was raised, or has ended."""

    state: Literal["raised", "ended"]
    begin: int
    first: int
    last: int
    events: int


@dataclass
class Kept:
    """What is kept of one key."""

    times: list[int] = field(default_factory=list)
    """Of the events that a group may still be completed with; in order."""
    among: list[bool] = field(default_factory=list)
    """For each of them, whether it is in a burst."""
    bursts: list[Burst] = field(default_factory=list)
    """In the order of their times."""

    def as_json(self) -> list[Any]:
        return [self.times, [int(each) for each in self.among], [list(astuple(each)) for each in self.bursts]]

    @classmethod
    def from_json(cls, found: Sequence[Any]) -> Kept:
        times, among, bursts = found
        return cls(list(times), [bool(each) for each in among], [Burst(*each) for each in bursts])

    def take(self, rules: Rules, times: Iterable[int]) -> list[BurstChange]:
        """Events that have come; returns the bursts that they raise."""
        raised = (self._take(rules, time) for time in sorted(times))
        return [change for change in raised if change is not None]

    def end(self, rules: Rules, watermark: int) -> list[BurstChange]:
        """No event before the watermark will come; returns the bursts that have ended."""
        over = [each for each in self.bursts if each.last + rules.within <= watermark]
        self.bursts = [each for each in self.bursts if each.last + rules.within > watermark]
        kept = bisect.bisect_right(self.times, watermark - rules.within)
        del self.times[:kept], self.among[:kept]
        return [_change("ended", each) for each in over]

    @property
    def is_empty(self) -> bool:
        return not self.times and not self.bursts

    def next_end(self, rules: Rules) -> int | None:
        """The watermark at which something ends that is kept, or need not be kept any more."""
        moments = [*self.times[:1], *(each.last for each in self.bursts)]
        return min(moments) + rules.within if moments else None

    def _take(self, rules: Rules, time: int) -> BurstChange | None:
        place = bisect.bisect_right(self.times, time)
        self.times.insert(place, time)
        self.among.insert(place, False)
        low, high = len(self.times), -1
        for start in range(max(place - rules.count + 1, 0), place + 1):
            end = start + rules.count - 1
            if end < len(self.times) and self.times[end] - self.times[start] < rules.within:
                low, high = min(low, start), max(high, end)
        if high < 0:
            return None
        new = [at for at in range(low, high + 1) if not self.among[at]]
        for at in new:
            self.among[at] = True
        first, last = self.times[low], self.times[high]
        known = next((each for each in self.bursts if each.first <= last and each.last >= first), None)
        if known is None:
            burst = Burst(first, first, last, len(new))
            bisect.insort(self.bursts, burst, key=lambda each: each.first)
            return _change("raised", burst)
        found = [self.times[at] for at in new]
        known.first, known.last = min(known.first, *found), max(known.last, *found)
        known.events += len(found)
        return None


def _change(state: Literal["raised", "ended"], burst: Burst) -> BurstChange:
    return BurstChange(state, burst.begin, burst.first, burst.last, burst.events)
