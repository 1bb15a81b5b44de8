"""When a job runs by itself: a cron expression, in a time zone."""

from __future__ import annotations

import re
from datetime import datetime
from itertools import pairwise
from typing import Literal, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import BaseModel, ConfigDict, model_validator

_BY_CHANCE = re.compile(r"(?<![a-z])[rh](?![a-z])", re.IGNORECASE)
"""Times that croniter draws anew whenever it is asked: such periods would have no ends."""
_FROM_ITSELF = re.compile(r"(?<!\w)(\w+)-\1(?!\w)", re.IGNORECASE)
"""`6-6`, which is 6 to cron, and every hour to croniter."""
_SOME_DAY = datetime(2026, 1, 1)


class Schedule(BaseModel):
    """When a job runs by itself."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    cron: str
    """Five fields, as in cron: minute, hour, day of the month, month, day of the week. Each time it names
    ends a period, which began with the time before; the run is about that period."""
    timezone: str = "UTC"
    """The zone of these times, such as `Europe/Helsinki`. A time that the clock skips is the moment after the
    gap, one that it shows twice is the first: periods follow each other without gap, and each is run once."""
    catch_up: Literal["latest", "all", "none"] = "latest"
    """What becomes of periods that ended while no scheduler ran: `latest` runs the last of them, `all` each
    of them in order, `none` leaves them out. What is left out is recorded as skipped."""
    parameters: dict[str, str] = {}
    """Values of parameters, with `{start}` and `{end}` of the period in this time zone, `{start:%Y-%m-%d}`
    for a part of them. By default the two parameters that `period` names are its beginning and its end."""

    @model_validator(mode="after")
    def _can_be_kept(self) -> Self:
        try:
            from croniter import CroniterError, croniter
        except ModuleNotFoundError:
            raise ValueError('`cron` needs croniter: pip install "signoff[schedules]"') from None
        if len(self.cron.split()) != 5 or _BY_CHANCE.search(self.cron) or not croniter.is_valid(self.cron):
            raise ValueError(f'`cron`: "{self.cron}" is no cron expression of five fields')
        if once := _FROM_ITSELF.search(self.cron):
            raise ValueError(f'`cron`: "{self.cron}" has a range of one: write {once[1]} for {once[0]}')
        try:
            croniter(self.cron, _SOME_DAY).get_next()
        except CroniterError:
            raise ValueError(f'`cron`: "{self.cron}" names no time that ever comes') from None
        try:
            ZoneInfo(self.timezone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ValueError(f'`timezone`: there is no time zone "{self.timezone}"') from None
        for name, text in self.parameters.items():
            try:
                text.format(start=_SOME_DAY, end=_SOME_DAY)
            except (KeyError, IndexError, ValueError, AttributeError, TypeError):
                raise ValueError(f"`parameters.{name}`: it may name {{start}} and {{end}} only") from None
        return self

    def values(self, start: datetime, end: datetime) -> dict[str, str]:
        """The values of parameters for a period, as texts."""
        return {name: text.format(start=start, end=end) for name, text in self.parameters.items()}

    def samples(self) -> list[dict[str, str]]:
        """Such values for periods of all kinds: days of one and two digits, in winter and summer."""
        zone = ZoneInfo(self.timezone)
        days = [datetime(2026, month, day, hour, tzinfo=zone)
                for month, day, hour in ((1, 1, 0), (2, 3, 4), (7, 30, 5), (12, 31, 23))]  # fmt: skip
        return [self.values(day, later) for day, later in pairwise(days)]
