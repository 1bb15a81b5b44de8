"""What the plan of a source is, once it is compiled: its rows, and what each column of them means.

Made by `compile`; read by the pass on executors (`delivery`), and by whoever decides the outcome of the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

from pyspark.sql import DataFrame
from pyspark.sql.types import DataType

from signoff.engine.plan.kept_rows import KeptRows
from signoff.engine.plan.task_report import ReportKind
from signoff.pipeline.model import OnFailure
from signoff.transforms.frame import DescribeError
from signoff.transforms.try_expressions import Attempt


@dataclass(frozen=True)
class SinkDelivery:
    """Rows of the plan that go to a sink: those where `alive` is true, with these columns."""

    alive: str
    columns: tuple[tuple[str, str | None], ...]
    """The sink's column names, and the plan's columns that hold them (None: null in this input)."""
    suffix: str
    """Appended to the rows' ids when several inputs of one source meet at the sink."""
    passed: frozenset[str] = frozenset()
    """The nodes in front of the sink that these rows may have come through."""
    input: str | None = None
    """The input the rows come by, where the sink wants to know."""
    identity: str | None = None
    """The plan's column with the ids that the source's events came with; None: they are its own."""


@dataclass(frozen=True)
class SinkPlan:
    """What one sink gets from one source."""

    name: str
    deliveries: tuple[SinkDelivery, ...]
    schema: Mapping[str, DataType]


@dataclass(frozen=True)
class ErrorPlan:
    column: str
    stage: str
    policy: OnFailure
    describe: DescribeError | None
    answers: bool = False
    """The column is read with `transforms.row_results`, and may hold another thing next time."""
    changeable: bool = False
    """It, or a step in front of it, answers: it may fail in any pass, for rows that did not come so far."""
    kind: ReportKind | None = None
    """Where it is no error: what a text in the column means."""
    suffix: str = ""
    """Of a sink: as for its delivery, by whose ids the rows are known."""


@dataclass(frozen=True)
class Plan:
    """The compiled plan of one source."""

    df: DataFrame
    sinks: Mapping[str, SinkPlan]
    errors: tuple[ErrorPlan, ...]
    shuffled: bool
    """Rows of one origin may be spread over partitions (see `engine.delivery.receipts`)."""
    unites: bool = False
    """A row may have several origins."""
    attempts: Mapping[str, Sequence[Attempt]] = field(default_factory=dict)
    """What may fail of the expressions of each step, by its name; see `engine.plan.failure_reasons`."""
    kept: KeptRows | None = None
    """Rows that must be computed before those of the plan can be read."""
    read_kept: frozenset[str] = frozenset()
    """The steps with `attempts` over rows that are kept."""

    @contextmanager
    def ready(self) -> Iterator[None]:
        """Jobs over the plan's rows belong in here."""
        with nullcontext() if self.kept is None else self.kept.computed():
            yield

    def reported_errors(self, *, all_steps: bool) -> tuple[ErrorPlan, ...]:
        """The errors a pass reports. Most steps fail on the same rows each time, and need to say so once."""
        return self.errors if all_steps else tuple(error for error in self.errors if error.changeable)
