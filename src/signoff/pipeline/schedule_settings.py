"""When a job runs by itself: a cron expression, in a time zone."""

from __future__ import annotations

from typing import Literal, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import BaseModel, ConfigDict, model_validator

FIELDS = ("start", "end")
"""What the texts of a schedule's parameters may name: the beginning and the end of the period."""


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
            from croniter import croniter
        except ModuleNotFoundError:
            raise ValueError('`cron` needs croniter: pip install "signoff[schedules]"') from None
        if len(self.cron.split()) != 5 or not croniter.is_valid(self.cron):
            raise ValueError(f'`cron`: "{self.cron}" is no cron expression of five fields')
        try:
            ZoneInfo(self.timezone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ValueError(f'`timezone`: there is no time zone "{self.timezone}"') from None
        for name, text in self.parameters.items():
            try:
                text.format(**dict.fromkeys(FIELDS, ""))
            except (KeyError, IndexError, ValueError) as error:
                if "format specifier" not in str(error):
                    raise ValueError(f"`parameters.{name}`: it may name {{start}} and {{end}} only") from None
        return self
