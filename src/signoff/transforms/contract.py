"""What a transform is: one method that adds its step to the frame of its source.

`compile` runs on the driver, once per query start, and only builds a plan: no data is touched. It
must give the same plan for the same config, because a batch is replayed after a crash.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from signoff.pipeline.model import TransformConfig
from signoff.transforms.frame import View

if TYPE_CHECKING:
    import pyarrow as pa

    from signoff.transforms.parsing.flat_json import FlatJson


Repeats = Callable[[str, float], "Callable[[pa.Array], pa.Array]"]
"""Makes what decides on executors which rows repeat others: from what is compared, and for how long."""


@dataclass(frozen=True)
class Step:
    """What a transform needs to know besides its own config."""

    name: str
    """The node's name; the stage in dead letters."""
    base: Path
    """Directory of the pipeline file."""
    trial: bool = False
    """The plan is only run to see which event it fails on. A step that brings events together may leave them
    where they are then: behind a shuffle nobody knows whose task failed."""
    inputs: tuple[str, ...] = ()
    """The inputs that were brought together before this step, if there are several; the name of the
    one a row came through is the last part of its child."""
    repeats: Repeats | None = None
    """For a step that knows events again. None: no row is to be asked about, because the plan is only tried,
    or because the rows have been through this step before."""
    black_box: Path | None = None
    """Where a step notes which event its function is called with, so that the driver knows of which one a
    worker has died (see `black_box`). Only in a trial."""


class Transform(TransformConfig):
    """The base of all transform types: a config that can compile itself."""

    follows: ClassVar[bool] = False
    """A row may have to wait for another event: what becomes of it depends on what becomes of that one."""

    drops: ClassVar[str] = ""
    """Why a row ends at this step, if one can without an error; such rows are counted by step."""

    @property
    def unites(self) -> bool:
        """Makes one row of several events of a batch: a batch must always be read whole."""
        return False

    @property
    def begins_plan(self) -> bool:
        """Begins a part of the plan for which what is upstream would be computed once more."""
        return self.unites

    @property
    def may_answer_otherwise(self) -> bool:
        """May fail for a row, or give it another value, in one computation of two: it is computed once in a
        pass, and kept, where several parts of the plan read it (see `engine.plan.kept_rows`)."""
        return self.calls_each_row or self.follows

    @property
    def calls_each_row(self) -> bool:
        """Calls a Python function with each row, which may end its worker: see `Step.black_box`."""
        return False

    @property
    def calls_out(self) -> bool:
        """Runs code of the user's or asks a service, whose effects nobody here can judge: whoever only looks
        at rows (`signoff tap`) does not compute this step unless told to."""
        return self.calls_each_row

    def flat_json(self) -> FlatJson | None:
        """Who may parse the payload in the place of this step while the log is read, and `compile` finds the
        columns it made; None if nobody can, or it is not the payload that this step parses."""
        return None

    def version(self, name: str, base: Path) -> object:
        """Changes when the step would be compiled into something else than before: then a plan that is used
        for many batches is made anew. Called before each batch."""
        return None

    @abstractmethod
    def compile(self, step: Step, view: View) -> Mapping[str | None, View]:
        """Add this step behind `view`; returns the view of each output (None: the main one).

        Raises pyspark's AnalysisException for an expression that does not fit, FieldError for
        anything else that is wrong with one field.
        """


class FieldError(Exception):
    """One field of a transform is wrong in a way only the plan shows; becomes a `Problem`."""

    def __init__(self, field: str, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.field, self.code, self.message, self.hint = field, code, message, hint
