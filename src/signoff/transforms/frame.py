"""One wide row per event: how several paths of a graph share one pass over the data.

Spark has no way to send one row down several branches without reading and parsing it once per
branch. So the stateless part of a source's graph is compiled into one `Frame`, a DataFrame in
which each node adds columns of its own and a condition under which a row is *alive* at it. A
filter adds one boolean; nothing is copied, and two sinks behind two filters cost one parse.

Invariants:

* Every row of the frame has `_sequence` (its origin) and `_child` (which of the origin's rows it
  is, '' for the event itself). Behind a step that unites events there is also `_others`: the further
  origins of a row, in order, or null if it has none; `_sequence` is the first of them all.
* A node's `View` says under which physical names its columns are found and in which column it is
  written whether a row is alive there. Expressions of users see only the view's own names.
* What a node computes is guarded by its input's alive column: an expression is never evaluated for a
  row that a filter before it removed, so a filter can protect a cast.
* A row whose step failed is not alive below that step, and has the reason in an error column.

Rejected: a union of one branch per sink, which reads and parses the source once per branch, and caching
the batch, which costs memory and a copy.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import DataType

from signoff.pipeline.model import OnFailure
from signoff.transforms.preparsed_names import EARLY, WHOLE
from signoff.transforms.try_expressions import UNEXPLAINED, Attempt, chance_in, may_fail, tried

SEQUENCE = "_sequence"
CHILD = "_child"
RECEIVED_AT = "_received_at"
OTHERS = "_others"
MARK = "_mark_"
EDITION = "_edition"
"""What the names of rows made from a corrected event begin with; see `ledger.outcome.EDITED`."""
IDENTITY = "_identity"
"""The id a row came with, where it keeps it."""
"""Begins the name of a column that says, in microseconds, up to where a window was closed when the batch
began; it has the same value in all rows of a batch."""
ORIGIN = "_origin"
"""The one column of lineage that a user's DataFrame function sees and must keep."""

DescribeError = Callable[[str], str]
"""Turns what an error column holds into the reason of a dead letter; runs on executors."""


@dataclass(frozen=True)
class View:
    """How one node's rows are found in a frame."""

    frame: Frame
    alive: str
    """Boolean column: the row exists at this node."""
    columns: Mapping[str, str]
    """The node's own column names, and the physical columns that hold them."""


@dataclass(frozen=True)
class ErrorColumn:
    """A column that holds, for the few rows a step failed for, why."""

    frame: Frame
    column: str
    stage: str
    policy: OnFailure
    describe: DescribeError | None = None
    answers: bool = False
    """The step says more than that it failed (see `row_results`), and may say something else next time."""
    attempt: Attempt | None = None
    """What failed, if the column only says that something did."""
    suffix: str = ""
    """What comes behind the names of the rows where they failed."""


@dataclass(eq=False)
class Frame:
    """A DataFrame under construction. Mutable only while the graph is compiled."""

    df: DataFrame
    pending: list[str] = field(default_factory=list)
    """Alive columns that somebody will still read; see `multiply`."""
    errors: list[ErrorColumn] = field(default_factory=list)
    shuffled: bool = False
    """Rows of one origin may sit in several partitions, in any order."""
    childless: bool = False
    """Each row is an event as it came: `_child` is empty everywhere, and need not be looked at."""
    ends: list[tuple[str, str]] | None = None
    """Steps, and the boolean column that says of a row that it has ended there; None: nobody counts them."""
    doubtful: set[str] = field(default_factory=set)
    """Steps whose columns may be others when computed again (see `Transform.may_answer_otherwise`)."""
    timed: set[str] = field(default_factory=set)
    """Steps whose columns tell the time, which is another one in the next job."""
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    """Shared by the frames of one plan, so that no two physical columns have the same name."""

    def fresh(self, name: str) -> str:
        """A physical column name that no user's column has."""
        return f"__{next(self.numbers)}_{name}"

    def scoped(self, view: View) -> DataFrame:
        """The frame with the view's columns laid over it under the names users know."""
        return self.df.select(
            "*", *(F.col(physical).alias(logical) for logical, physical in view.columns.items())
        )

    def compute(self, view: View, values: Mapping[str, Column], *, guarded: bool = True) -> dict[str, str]:
        """Add columns computed from the view's columns; returns name to physical name."""
        names = {name: self.fresh(name) for name in values}
        alive = F.col(view.alive)
        self.df = self.scoped(view).select(
            *self.df.columns,
            *(
                (F.when(alive, value) if guarded else value).alias(names[name])
                for name, value in values.items()
            ),
        )
        return names

    def attempt(
        self, stage: str, view: View, values: Mapping[str, Column], policy: OnFailure, *, suffix: str = ""
    ) -> tuple[View, dict[str, str]]:
        """Add columns that expressions of a user compute from the view's columns. A row for which one fails
        is not alive in the view returned, and its error is the step's. Also returns name to physical name.
        `suffix`: what comes behind the row's name there.
        """
        scoped = self.scoped(view)
        if not may_fail(scoped, values):
            return view, self.compute(view, values)
        # Not the alive column alone: Spark may know that to be true, and leave the condition out.
        alive, before = F.col(view.alive) & (F.col(SEQUENCE) >= F.lit(0)), self.df.columns
        struct, whole, error = self.fresh("tried"), self.fresh("alive"), self.fresh("error")
        names = {name: self.fresh(name) for name in values}
        with_struct = scoped.select(*before, F.when(alive, tried(values)).alias(struct))
        lots, time = chance_in(with_struct, struct)
        self.note_chance(stage, lots=lots, time=time)
        self.df = with_struct.select(
            *before,
            (F.col(view.alive) & F.col(struct).isNotNull()).alias(whole),
            F.when(F.col(view.alive) & F.col(struct).isNull(), F.lit(UNEXPLAINED)).alias(error),
            *(F.col(struct)[f"v{index}"].alias(name) for index, name in enumerate(names.values())),
        )
        attempt = Attempt(scoped, view.alive, values, suffix)
        self.errors.append(ErrorColumn(self, error, stage, policy, attempt=attempt, suffix=suffix))
        return View(self, whole, view.columns), names

    def note_chance(self, stage: str, *, lots: bool, time: bool) -> None:
        """What a step computes draws lots, or tells the time."""
        self.doubtful |= {stage} if lots else set()
        self.timed |= {stage} if time else set()

    def note_ends(self, stage: str, before: View, outputs: Iterable[str]) -> None:
        """A step leaves rows out: those alive before it, and in none of its outputs' alive columns."""
        if self.ends is not None:
            ended = F.col(before.alive)
            for name in outputs:
                ended = ended & ~F.coalesce(F.col(name), F.lit(False))
            self._add_end(stage, ended)

    def _add_end(self, stage: str, ended: Column) -> None:
        assert self.ends is not None
        name = self.fresh("ended")
        self.df = self.df.withColumn(name, F.coalesce(ended, F.lit(False)))
        self.ends.append((stage, name))

    def add_error(
        self,
        stage: str,
        column: str,
        policy: OnFailure,
        describe: DescribeError | None = None,
        *,
        answers: bool = False,
    ) -> None:
        self.errors.append(ErrorColumn(self, column, stage, policy, describe, answers))

    def multiply(self, view: View, children: Column, element: str) -> tuple[str, str]:
        """Replace each row alive at `view` by the elements of an array, keeping the row itself for others.

        `children` (in the view's scope) is an array of structs `(child STRING, value <any>)`; a null
        `child` keeps the parent's own. The row itself stays while another path still reads it, it
        carries an error, or it has ended and is to be counted; in the new rows all that was alive
        before is not.

        Returns the physical names of: alive (true in the new rows) and the value.
        """
        self.childless = False
        value = self.fresh(element)
        alive = self.fresh("alive")
        before = self.df.columns
        flags = [name for name in dict.fromkeys(self.pending) if name in before]
        reasons = [error.column for error in self.errors if error.column in before]
        needed = F.lit(False)
        for name in flags:
            needed = needed | F.coalesce(F.col(name), F.lit(False))
        for name in reasons:
            needed = needed | F.col(name).isNotNull()
        ended = [name for _, name in self.ends or ()]
        for name in ended:
            needed = needed | F.coalesce(F.col(name), F.lit(False))
        scoped = self.scoped(view).select(*before, F.when(F.col(view.alive), children).alias("__children"))
        kind = scoped.schema["__children"].dataType
        if self.ends is not None:
            nothing = F.col(view.alive) & (F.coalesce(F.size("__children"), F.lit(0)) <= 0)
            scoped = scoped.withColumn("__nothing", F.coalesce(nothing, F.lit(False)))
            needed = needed | F.col("__nothing")
        value_type = kind.elementType["value"].dataType
        of_child = F.transform(
            F.coalesce(F.col("__children"), F.array().cast(kind)),
            lambda item: F.struct(
                F.lit(False).alias("base"), item["child"].alias("child"), item["value"].alias("value")
            ),
        )
        itself = F.array(
            F.struct(
                F.lit(True).alias("base"),
                F.lit(None).cast("string").alias("child"),
                F.lit(None).cast(value_type).alias("value"),
            )
        )
        rows = F.concat(F.when(needed, itself).otherwise(F.slice(itself, 1, 0)), of_child)
        wide = scoped.withColumn("__row", F.explode(rows))
        kept = []
        for name in before:
            if name in flags or name in reasons or name in ended:
                kept.append(F.when(F.col("__row.base"), F.col(name)).alias(name))
            elif name == CHILD:
                kept.append(_join_child(F.col(CHILD), F.col("__row.child")).alias(CHILD))
            else:
                kept.append(F.col(name))
        if self.ends is not None:
            self.ends.append((element, self.fresh("ended")))
            kept.append(F.when(F.col("__row.base"), F.col("__nothing")).alias(self.ends[-1][1]))
        self.df = wide.select(
            *kept,
            (~F.col("__row.base")).alias(alive),
            F.col("__row.value").alias(value),
        )
        return alive, value

    def cut(self, view: View) -> DataFrame:
        """The rows alive at a view as a DataFrame of their own: lineage and the view's columns only."""
        return self.df.where(F.col(view.alive)).select(
            *lineage_of(self.df),
            *(F.col(physical).alias(logical) for logical, physical in view.columns.items()),
        )

    def fork(self, name: str, views: Mapping[str, View]) -> View:
        """Unite several views of this frame: an event alive at two of them goes on as two rows.

        The name of the input a row came through becomes part of its id, so that the two are told
        apart at the sink.
        """
        columns = unified({given: self.schema_of(view) for given, view in views.items()})
        copies = []
        for given, view in views.items():
            fields = [
                (F.col(view.columns[c]) if c in view.columns else F.lit(None)).cast(kind).alias(c)
                for c, kind in columns.items()
            ]
            copy = F.struct(F.lit(given).alias("child"), F.struct(*fields).alias("value"))
            copies.append(F.when(F.coalesce(F.col(view.alive), F.lit(False)), copy))
        some = self.fresh("alive")
        alive = F.lit(False)
        for view in views.values():
            alive = alive | F.coalesce(F.col(view.alive), F.lit(False))
        self.df = self.df.withColumn(some, alive)
        new, value = self.multiply(View(self, some, {}), F.array_compact(F.array(*copies)), name)
        return View(self, new, self.compute(View(self, new, {}), {c: F.col(value)[c] for c in columns}))

    def needed(self, views: Iterable[View]) -> list[str]:
        """The columns that are read by what goes on from these views, and by what is said of rows."""
        wanted = {*lineage_of(self.df), *(error.column for error in self.errors)}
        wanted |= {name for _, name in self.ends or ()}
        for view in views:
            wanted |= {view.alive, *view.columns.values()}
        return [name for name in self.df.columns if name in wanted or name.startswith(EARLY)]

    def schema_of(self, view: View) -> dict[str, DataType]:
        schema = self.df.schema
        return {logical: schema[physical].dataType for logical, physical in view.columns.items()}


def lineage_of(df: DataFrame) -> list[str]:
    """The columns of lineage that a frame, or what was cut out of it, has."""
    further = [name for name in df.columns if name in (OTHERS, IDENTITY) or name.startswith(MARK)]
    return [SEQUENCE, CHILD, RECEIVED_AT, *further]


class MergeConflict(Exception):
    """Two inputs have a column of the same name and different types."""


def unified(schemas: Mapping[str, Mapping[str, DataType]]) -> dict[str, DataType]:
    """The columns of several inputs together, by name; a column that one lacks is null there."""
    columns: dict[str, DataType] = {}
    for given, schema in schemas.items():
        for name, kind in schema.items():
            if columns.setdefault(name, kind) != kind:
                raise MergeConflict(
                    f'column "{name}" is {kind.simpleString()} in "{given}" '
                    f"and {columns[name].simpleString()} in another input"
                )
    return columns


def begin(
    df: DataFrame, columns: Sequence[str], stage: str, policy: OnFailure, *, counts: bool = False
) -> tuple[Frame, View]:
    """A frame over what a source gives: `df` has the lineage columns, `error`, and `columns`.

    With `counts` it is noted of each row at which step it has ended (see `Frame.ends`). Where the column
    `EDITION` is there, it is the beginning of the rows' names.
    """
    edited = EDITION in df.columns
    frame = Frame(df, childless=not edited, ends=[] if counts else None)
    alive, error = frame.fresh("alive"), frame.fresh("error")
    names = {name: frame.fresh(name) for name in columns}
    frame.df = df.select(
        SEQUENCE,
        (F.col(EDITION) if edited else F.lit("")).alias(CHILD),
        F.col("received_at").alias(RECEIVED_AT),
        # As a column of its own Spark need not compute it first, in a step before all others.
        (F.col(WHOLE) if WHOLE in df.columns else F.col("error").isNull()).alias(alive),
        F.col("error").alias(error),
        *(name for name in df.columns if name.startswith((MARK, EARLY))),
        *(F.col(logical).alias(physical) for logical, physical in names.items()),
    )
    frame.add_error(stage, error, policy)
    return frame, View(frame, alive, names)


def begin_again(df: DataFrame, columns: Sequence[str], before: Frame) -> View:
    """A new frame over the result of a step that Spark must see as a DataFrame (see `Frame.cut`)."""
    frame = Frame(df, shuffled=True, numbers=before.numbers)
    alive = frame.fresh("alive")
    names = {name: frame.fresh(name) for name in columns}
    frame.df = df.select(
        *lineage_of(df),
        F.lit(True).alias(alive),
        *(F.col(logical).alias(physical) for logical, physical in names.items()),
    )
    return View(frame, alive, names)


def _join_child(parent: Column, child: Column) -> Column:
    return (
        F.when(child.isNull(), parent)
        .when(parent == F.lit(""), child)
        .otherwise(F.concat(parent, F.lit("/"), child))
    )
