"""`burst`: many events of a key in a short time, told as soon as they are there, and when that is over.

What is computed where is as for a window (`signoff.transforms.window.step`), whose part in front it has: the
time is checked, and late events are split off, in the source's query. In the streaming query behind it, each
event is a time of its key (`bursts`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import (
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from signoff.pipeline.durations import Duration
from signoff.pipeline.model import Names
from signoff.transforms.burst.bursts import Rules
from signoff.transforms.contract import Step
from signoff.transforms.frame import CHILD, RECEIVED_AT, SEQUENCE, View, begin_again
from signoff.transforms.window.bounds import Moments
from signoff.transforms.window.event_time import EventTimeConfig
from signoff.transforms.window.step import WindowInput

_OF_BURSTS: Mapping[str, DataType] = {
    "burst": StringType(),
    "state": StringType(),
    "burst_start": TimestampType(),
    "burst_end": TimestampType(),
    "events": LongType(),
}


class BurstConfig(EventTimeConfig):
    summary: ClassVar[str] = "Tell of many events of a key in a short time: at once, and when it is over."
    example: ClassVar[str] = (
        "count: 5\nwithin: 1h\ntime: eventTime\nkeys: [stationId, sensorId]\nallowed_lateness: 15m\n"
    )
    type: Literal["burst"] = "burst"
    keys: Names = Field(min_length=1)
    """Columns: events with the same values in all of them are counted together. They are columns of the
    result."""
    count: Annotated[int, Field(ge=2, le=10_000)]
    """So many events of a key that lie within `within` are a burst, or belong to one. A result with `state`
    `raised` comes as soon as they are there, whatever order they come in, and once for each burst."""
    within: Annotated[Duration, Field(ge=0.001)]
    """The last of `count` events is less than this after the first. A burst has ended when the watermark is
    as far behind its last event: then a result comes with `state` `ended`, and all that was counted."""
    acknowledge: ClassVar[str] = "save_point"
    emit: ClassVar[str] = "closed"

    @model_validator(mode="after")
    def _fits(self) -> BurstConfig:
        if wrong := next((key for key in self.keys if key.lower() in _OF_BURSTS), None):
            raise ValueError(
                f'a key is called "{wrong}", as a column of the result is; rename it with a select'
            )
        return self

    @property
    def settles(self) -> bool:
        return True

    @property
    def panes(self) -> Moments:
        return Moments(self.rules.within)

    @property
    def rules(self) -> Rules:
        return Rules(self.count, round(self.within * 1000) * 1000)

    @property
    def shape(self) -> dict[str, object]:
        return {"count": self.count, "within": self.rules.within, "keys": list(self.keys)}

    def compile(self, step: Step, view: View) -> Mapping[str | None, View]:
        """The step as a whole, over a batch: what its columns are."""
        found = WindowInput(window=self, late_is_read=True).compile(step, view)
        schema = result_schema(self, found[None].frame.schema_of(found[None]))
        made = view.frame.cut(view).select(
            SEQUENCE,
            CHILD,
            RECEIVED_AT,
            *(F.lit(None).cast(column.dataType).alias(column.name) for column in schema),
        )
        return {None: begin_again(made, schema.names, view.frame), "late": found["late"]}


def result_schema(burst: BurstConfig, handed: Mapping[str, DataType]) -> StructType:
    """The columns of a result. `handed`: those that `WindowInput` gives."""
    keys = [StructField(name, handed[name]) for name in burst.keys]
    return StructType([*keys, *(StructField(name, kind) for name, kind in _OF_BURSTS.items())])
