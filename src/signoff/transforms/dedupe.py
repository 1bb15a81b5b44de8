"""`dedupe`: only the first of the events with the same keys, within a time bound.

A duplicate is bound to the event it repeats, and shares its fate: it waits while that one is in flight, is
dropped when that one is settled, and is the first again when that one was refused or has expired. Who was
the first is in an index on disk (`signoff.stateful.key_index`), which the step asks while the plan runs; what
it says of a row is an answer like that of a web service (`row_results`), and a row that waits is kept as
one that waits for such (`signoff.engine.batch.step_retries`). Time is the time of receipt, which never runs
backwards in a log."""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema
from pyspark.sql import functions as F  # noqa: N812

from signoff.pipeline.durations import DURATION, UNITS
from signoff.pipeline.model import Names
from signoff.transforms.contract import FieldError, Step, Transform
from signoff.transforms.frame import CHILD, OTHERS, RECEIVED_AT, SEQUENCE, View
from signoff.transforms.keys import NoKey, key_hash

DECIDED = "ends BOOLEAN, error STRING"
"""What the index says of a row: whether it repeats one that is settled, and what is said of that; or that it
has to wait. All null for a row that is the first."""
_WORDS = {
    "microsecond": 1e-6,
    "millisecond": 1e-3,
    "second": 1.0,
    "minute": 60.0,
    "hour": 3600.0,
    "day": 86400.0,
    "week": 604800.0,
}
_INTERVAL = re.compile(rf"(\d+(?:\.\d+)?)\s*({'|'.join(_WORDS)})s?\s*", re.IGNORECASE)


def _seconds(value: object) -> object:
    """As durations are written elsewhere (`10m`), or as Spark's intervals (`1 hour 30 minutes`)."""
    if not isinstance(value, str):
        return value
    if match := re.match(DURATION, value):
        return float(match[1]) * UNITS[match[2] or "s"]
    words = value.strip().lower().removeprefix("interval ").strip()
    found = _INTERVAL.findall(words)
    if not found or _INTERVAL.sub("", words):
        raise ValueError(
            f'"{value}" is not a time that keys can be remembered for; write 10m, 1 hour or 2 days'
        )
    return sum(float(number) * _WORDS[unit.lower()] for number, unit in found)


Within = Annotated[
    float, BeforeValidator(_seconds), WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "string"}]})
]


class Remembering(Transform):
    """A step that knows keys again, and for which an event may have to wait for another."""

    follows: ClassVar[bool] = True
    keys: Names = Field(min_length=1)
    """Columns that together make two events the same. An event in which one of them is null repeats none."""
    max_keys: int = Field(default=10_000_000, ge=1)
    """About how many keys are remembered at most, on disk (about 120 bytes each). Of more the oldest are
    forgotten first: an event that repeats one of those is delivered as if it were the first."""

    @property
    @abstractmethod
    def remembers_s(self) -> float:
        """For how long, in seconds."""

    @property
    def places(self) -> int:
        """How many rows with one key are let through in that time."""
        return 1

    @property
    @abstractmethod
    def definition(self) -> str:
        """What is compared. The keys that were remembered for another definition say nothing of this one."""

    def compile(self, step: Step, view: View) -> Mapping[str | None, View]:
        missing = [key for key in self.keys if key not in view.columns]
        if missing:
            known = ", ".join(view.columns)
            raise FieldError(
                "keys", "unresolved-column", f'there is no column "{missing[0]}"', f"there is: {known}"
            )
        frame, kinds = view.frame, view.frame.schema_of(view)
        try:
            hashed = key_hash([(F.col(key), kinds[key]) for key in sorted(self.keys)])
        except NoKey as kind:
            hint = "use columns whose values can be compared: make them with a select"
            raise FieldError("keys", "type-error", f"there are no keys of type {kind}", hint) from None
        if step.repeats is None:
            return {None: view}
        others = F.col(OTHERS) if OTHERS in frame.df.columns else F.lit(None).cast("array<bigint>")
        decide = F.arrow_udf(step.repeats(self.definition, self.remembers_s), DECIDED).asNondeterministic()
        key = frame.compute(view, {"key": hashed})["key"]
        row = F.struct(
            F.col(SEQUENCE).alias("sequence"),
            F.col(CHILD).alias("child"),
            F.unix_micros(F.col(RECEIVED_AT)).alias("received"),
            F.col(key).alias("key"),
            others.alias("others"),
        )
        # Spark evaluates Python functions before it looks at conditions: a row that is not alive here, or has
        # no key, arrives as null.
        asked = decide(F.when(F.col(view.alive) & F.col(key).isNotNull(), row))
        said = frame.compute(view, {"decided": asked}, guarded=False)["decided"]
        ends, error = F.coalesce(F.col(said)["ends"], F.lit(False)), F.col(said)["error"]
        found = frame.compute(view, {"ends": ends, "error": error, "alive": error.isNull()})
        if frame.ends is not None:  # they are counted, not named one by one
            stays = frame.compute(view, {"stays": ~F.col(found["ends"])})["stays"]
            frame.note_ends(step.name, view, [stays])
            found |= frame.compute(view, {"error": F.when(F.col(stays), F.col(found["error"]))})
        frame.add_error(step.name, found["error"], self.on_error, answers=True)
        return {None: View(frame, found["alive"], view.columns)}


class DedupeConfig(Remembering):
    summary: ClassVar[str] = "Drop events whose keys were seen before, within a time bound."
    drops: ClassVar[str] = "seen before"
    type: Literal["dedupe"] = "dedupe"
    within: Within = Field(default=3600.0, gt=0, le=366 * 86400)
    """How long a key is remembered: `10m`, `1 hour`, `2 days`. Measured by the times of receipt in the log,
    which stand still after the clock was set back, until it has caught up."""

    @property
    def remembers_s(self) -> float:
        return self.within

    @property
    def definition(self) -> str:
        return json.dumps(sorted(self.keys), ensure_ascii=False)
