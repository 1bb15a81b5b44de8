"""The periods of a schedule. croniter says which times of day an expression names; here they become moments.

Invariants: periods follow each other without gap or overlap, whatever the clock of the zone does; the same
expression and zone give the same periods, whenever they are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from croniter import croniter

from signoff.pipeline.schedule_settings import Schedule

_MARGIN = timedelta(days=2)
"""More than any clock is ever moved."""


@dataclass(frozen=True)
class Period:
    """From one time that the expression names to the next."""

    start: datetime
    end: datetime
    """In the zone of the schedule; the run is due then."""

    @property
    def name(self) -> str:
        return self.end.isoformat()


def periods(schedule: Schedule, after: datetime, upto: datetime) -> Iterator[Period]:
    """The periods that end after one moment and not after the other, in order."""
    zone = ZoneInfo(schedule.timezone)
    before: datetime | None = None
    for end in _moments(schedule.cron, zone, after):
        if end > upto:
            return
        if before is not None and end > after:
            yield Period(before.astimezone(zone), end.astimezone(zone))
        before = end


def _moments(cron: str, zone: ZoneInfo, around: datetime) -> Iterator[datetime]:
    """In UTC, each once, beginning before a moment.

    croniter counts in times of the wall, each of which is there once: so an hour that the clock repeats has
    its times once, and those of one that it skips are all the moment after it.
    """
    begin = around.astimezone(zone).replace(tzinfo=None) - _MARGIN
    walls = croniter(cron, begin)
    first = walls.get_prev(datetime)  # of an expression that names a day in a year as well
    last: datetime | None = None
    wall = croniter(cron, first).get_prev(datetime)
    walls = croniter(cron, wall - timedelta(seconds=1))
    while True:
        moment = _moment(walls.get_next(datetime), zone)
        if last is None or moment > last:
            last = moment
            yield moment


def _moment(wall: datetime, zone: ZoneInfo) -> datetime:
    """When the clock shows it first; if it never does, the moment at which it goes past."""
    local = wall.replace(tzinfo=zone, fold=0)
    moment = local.astimezone(UTC)
    if moment.astimezone(zone).replace(tzinfo=None) == wall:
        return moment
    # In a gap: `fold=0` counts with what held before it, and is as far behind the gap as the time is in it.
    into = moment.astimezone(zone).replace(tzinfo=None) - wall
    edge = moment
    step = timedelta(minutes=1)
    while (edge - step).astimezone(zone).utcoffset() == moment.astimezone(zone).utcoffset():
        edge -= step
        if moment - edge > into + timedelta(days=1):
            return moment
    return edge
