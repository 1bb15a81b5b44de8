"""From a checked graph to one Spark plan per source.

The plan of a source is everything behind it, down to the rows that go to
Python: one record per row with its lineage (of rows that are events as they came, only the sequence:
a column of empty texts costs as much as any other), the columns any sink needs, one boolean per delivery
and the error columns. Rows that go nowhere and carry no error are left out here, inside Spark: an
event that appears nowhere in a finished batch was dropped. How many ended where is counted in passing
(see `drop_counters`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import reduce
from pathlib import Path

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from signoff.engine.plan.analysis_errors import (
    analysis,
    check_kept,
    check_resolves,
    expression_field,
    first_line,
)
from signoff.engine.plan.drop_counters import observed
from signoff.engine.plan.duplicates import decide_repeats
from signoff.engine.plan.kept_rows import KeptRows
from signoff.engine.plan.plan import ErrorPlan, Plan, SinkDelivery, SinkPlan
from signoff.engine.plan.task_report import ReportKind
from signoff.errors import PipelineError, Problem
from signoff.pipeline.graph import Graph, Node, Port
from signoff.pipeline.model import OnFailure, SinkConfig, SourceConfig
from signoff.sinks.contract import EVENT_ID
from signoff.transforms.contract import FieldError, Step, Transform
from signoff.transforms.datetime_patterns import HINT, BadPattern
from signoff.transforms.frame import (
    CHILD,
    IDENTITY,
    OTHERS,
    SEQUENCE,
    ErrorColumn,
    Frame,
    MergeConflict,
    View,
    begin,
    begin_again,
    unified,
)
from signoff.transforms.parsing.typed_texts import typed_rows
from signoff.transforms.try_expressions import Attempt

SOURCE_COLUMNS = ("payload", "headers", "message_id", "received_at")
"""What transforms see of an event before anything is parsed."""
_BARRIER = "__barrier"

RowName = tuple[int, str]
"""A row by its sequence and child."""


def compile_source(
    graph: Graph,
    source: str,
    df: DataFrame,
    *,
    sinks: set[str] | None = None,
    entry: str | None = None,
    rows: Collection[RowName] | None = None,
    counts: bool = False,
    trial: bool = False,
    tells: bool = False,
    replay: bool = False,
    black_box: Path | None = None,
    kept: KeptRows | None = None,
    problem: Callable[[Problem], None] | None = None,
) -> Plan | None:
    """Compile what hangs on `source`. `df` has the columns of the log's Spark source.

    `sinks` restricts the plan to some sinks, `entry` to what lies behind one transform (for a
    replayed dead letter), and `rows` to some rows, by sequence and child, that come to that transform.
    With `counts` it is counted at which step rows end (see `drop_counters`). `trial`: it is only to be seen
    what it fails on. `tells`: of each row it is said that it has come to the entry, and where it ended.
    `replay`: rows that have come as far as `entry` (without: to the sinks) before, and are not asked again
    whether they repeat others. `kept`: where rows are kept that must not be computed twice; None: the plan
    decides nothing. With `problem` given, every error of every node is reported there and None is
    returned if there was any; without, the first error is raised as PipelineError.
    """

    def compiled(*, several_jobs: bool) -> tuple[_Compiler, Plan | None]:
        compiler = _Compiler(graph, source, sinks, entry, rows, counts, trial, tells, replay, problem)
        compiler.black_box, compiler.kept = black_box, kept
        compiler.several_jobs |= several_jobs
        return compiler, compiler.compile(df)

    compiler, plan = compiled(several_jobs=False)
    if compiler.keeps and compiler.reads_time and not compiler.failed:
        # Only now is it known that the job that tells the time for one part is not that of the others.
        if kept is not None:
            kept.steps.clear()
        _, plan = compiled(several_jobs=True)
    return plan


class _Compiler:
    def __init__(
        self,
        graph: Graph,
        source: str,
        sinks: set[str] | None,
        entry: str | None,
        rows: Collection[RowName] | None,
        counts: bool,
        trial: bool,
        tells: bool,
        replay: bool,
        problem: Callable[[Problem], None] | None,
    ) -> None:
        self.graph, self.source = graph, source
        self.counts, self.trial, self.tells, self.problem = counts, trial, tells, problem
        self.told: list[ErrorPlan] = []
        self.black_box: Path | None = None
        self.kept: KeptRows | None = None
        self.certain: set[int] | None = None
        """The errors of steps in front of everything that is kept, by identity; None: nothing is kept."""
        self.sent: list[View] = []
        """What goes to sinks."""
        self.brought_together: list[Frame] = []
        """Frames that may have no view any more, because a step has begun another, but have its errors."""
        self.failed = False
        behind = graph.downstream(source)
        if entry is not None and entry != source:
            behind &= graph.downstream(entry) | {entry} | _ancestors(graph, entry)
        wanted = {
            name
            for name in behind
            if name in graph.sinks
            and (sinks is None or name in sinks)
            and (entry is None or entry == source or name in graph.downstream(entry))
        }
        self.nodes = [
            node
            for node in graph.nodes.values()
            if node.name in behind and (node.name in wanted or graph.downstream(node.name) & wanted)
        ]
        self.nodes.sort(key=lambda node: self._is_behind_doubt(node.name))
        self.several_jobs = any(self._is_behind_doubt(node.name) for node in self.nodes)
        """Some rows may be kept: then there are several jobs, and each has its own time."""
        self.keeps = self.reads_time = False
        """Whether rows are kept; whether some that depend on the time are not, as if there were one job."""
        self.entry, self.rows = entry, rows
        self.replay = replay
        self.passed: Collection[str] = graph.nodes.keys() if replay and entry is None else ()
        if replay and entry is not None:
            self.passed = _ancestors(graph, entry)
        self.views: dict[Port, View] = {}
        self.readers = Counter(port for node in self.nodes for port in node.inputs)
        self.identity: str | None = None

    def _is_behind_doubt(self, name: str) -> bool:
        """Whether a step is one that calls out, or behind one. What is not comes first: else its part of the
        plan would begin with rows for which a function was called, and call that once more for nothing."""
        return any(
            isinstance(config := self.graph.nodes[each].config, Transform) and config.may_answer_otherwise
            for each in {name} | _ancestors(self.graph, name)
        )

    def compile(self, df: DataFrame) -> Plan | None:
        policy: OnFailure = "dead_letter"
        _, view = begin(df, SOURCE_COLUMNS, self.source, policy, counts=self.counts or self.tells)
        config = self.graph.nodes[self.source].config
        assert isinstance(config, SourceConfig)
        if (rows := config.typed_rows) is not None:
            try:
                view = typed_rows(self.source, view, rows, policy)
            except FieldError as error:
                self._report(
                    self.graph.nodes[self.source], error.field, error.code, error.message, error.hint
                )
                return None
        self.views[Port(self.source, None)] = view
        if getattr(self.graph.nodes[self.source].config, "keeps_ids", False):
            view.frame.df = view.frame.df.withColumn(IDENTITY, F.col(view.columns["message_id"]))
            self.identity = IDENTITY
        sinks: dict[str, SinkPlan] = {}
        for node in self.nodes:
            try:
                if node.kind == "transform":
                    self._transform(node)
                elif node.kind == "sink":
                    sinks[node.name] = self._sink(node)
            except _InputMissing:
                continue
            except FieldError as error:
                self._report(node, error.field, error.code, error.message, error.hint)
            except MergeConflict as error:
                self._report(node, "inputs", "merge-conflict", str(error), "cast one with a select")
            except BadPattern as error:
                self._report(node, expression_field(node), "bad-pattern", str(error), HINT)
            except AnalysisException as error:
                self._report(node, expression_field(node), *analysis(error, self._columns(node)))
            except PySparkException as error:
                self._report(node, expression_field(node), "plan-error", first_line(str(error)), "")
        return None if self.failed else self._plan(sinks)

    def _inputs(self, node: Node) -> dict[str, View]:
        """The views of this source that feed a node, by the name of the input."""
        found: dict[str, View] = {}
        for port in node.inputs:
            self.readers[port] -= 1
            if port in self.views and self._leads_from_entry(port.node, node.name):
                found[f"{port.node}.{port.output}" if port.output else port.node] = self.views[port]
        if not found:
            raise _InputMissing
        return found

    def _columns(self, node: Node) -> list[str]:
        """The columns that expressions of a node may use."""
        views = (self.views[port] for port in node.inputs if port in self.views)
        return list(dict.fromkeys(name for view in views for name in view.columns))

    def _leads_from_entry(self, before: str, node: str) -> bool:
        """Behind the entry only what came through it is replayed: the rest has its rows.

        What is united behind it (`rows`) is made of all parts.
        """
        if self.entry is None or self.entry == self.source:
            return True
        behind = self.graph.downstream(self.entry)
        if node not in behind or (self.rows is not None and self._is_united(node)):
            return True
        return before == self.entry or before in behind

    def _is_united(self, name: str) -> bool:
        """Whether rows that come to a node, or what is made of them, become one with others."""
        nodes = (self.graph.nodes[each].config for each in {name} | self.graph.downstream(name))
        return any(isinstance(config, Transform) and config.unites for config in nodes)

    def _has_several_inputs(self, node: Node) -> bool:
        """Whether rows of the source come to a node by several inputs, and have the input in their names.

        Also if only some of them are in this plan: a row has the same name in all plans.
        """
        reached = self.graph.downstream(self.source) | {self.source}
        return len({port for port in node.inputs if port.node in reached}) > 1

    def _transform(self, node: Node) -> None:
        views = self._inputs(node)
        self._mark_pending()
        if len({id(view.frame) for view in views.values()}) > 1:
            self._keep(node, views.values())
        view = self._unite(node, views) if self._has_several_inputs(node) else next(iter(views.values()))
        if self._has_several_inputs(node):
            self._mark_pending()
        if node.name == self.entry and self.rows is not None:
            view = self._only(view, self.rows)
        if node.name == self.entry and self.tells:
            self._tell(view.frame, node.name, ReportKind.REACHED, F.col(view.alive))
        assert isinstance(node.config, Transform)
        if node.config.begins_plan:
            self._keep(node, [view])
        together = tuple(views) if self._has_several_inputs(node) else ()
        asks = not self.trial and node.name not in self.passed
        repeats = (
            decide_repeats(self.graph.state, self.source, node.name, replay=self.replay) if asks else None
        )
        step = Step(node.name, self.graph.base, self.trial, together, repeats, self.black_box)
        for output, result in node.config.compile(step, view).items():
            self.views[Port(node.name, output)] = result
            if node.config.may_answer_otherwise:
                result.frame.doubtful.add(node.name)
            if node.name in view.frame.timed:  # and what it has begun with that tells it, too
                result.frame.timed.add(node.name)

    def _keep(self, node: Node, views: Iterable[View]) -> None:
        """The rows at these views are about to be read by another part of the plan. Where a step upstream may
        answer otherwise the next time, all parts get what it answers the first time."""
        given = list(views)
        later = [view for port, view in self.views.items() if self.readers[port] > 0]
        for frame in {id(view.frame): view.frame for view in given}.values():
            doubtful = frame.doubtful | (frame.timed if self.several_jobs else set())
            if not self._concerns(node, doubtful):
                self.reads_time |= self._concerns(node, frame.timed)
                continue
            read = [view for view in (*given, *later, *self.sent) if view.frame is frame]
            self.keeps = True
            rows = frame.df.select(*frame.needed(read))
            check_kept(rows, "inputs" if "inputs" in node.field_lines else "input")
            if self.kept is None:
                continue
            if self.certain is None:
                self.certain = {id(error) for each in self._frames() for error in each.errors}
            frame.df = self.kept.keep(rows)
            frame.doubtful.clear()
            frame.timed.clear()

    def _concerns(self, node: Node, steps: Iterable[str]) -> bool:
        """Whether what one of these steps computes is in the rows that come to a node."""
        upstream = _ancestors(self.graph, node.name)
        return any(each in upstream or self._calls_rows(each) for each in steps)

    def _calls_rows(self, step: str) -> bool:
        """Whether a step is in all rows of its frame: any of them is made by calling a function."""
        config = self.graph.nodes[step].config
        return isinstance(config, Transform) and config.calls_each_row

    def _unite(self, node: Node, views: Mapping[str, View]) -> View:
        frames = {id(view.frame): view.frame for view in views.values()}
        if len(frames) == 1:
            return next(iter(frames.values())).fork(node.name, views)
        columns = unified({name: view.frame.schema_of(view) for name, view in views.items()})
        parts = []
        for name, view in views.items():
            child = F.when(F.col(CHILD) == F.lit(""), F.lit(name)).otherwise(
                F.concat(F.col(CHILD), F.lit(f"/{name}"))
            )
            parts.append(view.frame.cut(view).withColumn(CHILD, child))
        united = reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), parts)
        view = begin_again(united, list(columns), next(iter(frames.values())))
        self.brought_together.append(view.frame)
        return view

    def _frames(self) -> list[Frame]:
        """All whose rows the plan reads."""
        given = (*(view.frame for view in self.views.values()), *self.brought_together)
        return list({id(frame): frame for frame in given}.values())

    def _drops(self, stage: str) -> str:
        """Why rows end at a step."""
        return str(getattr(self.graph.nodes[stage].config, "drops", "")) if stage in self.graph.nodes else ""

    def _tell(self, frame: Frame, stage: str, kind: ReportKind, holds: Column) -> None:
        """Say of rows for which something holds what that is; kept like the reason of an error."""
        column = frame.fresh("told")
        frame.df = frame.df.withColumn(column, F.when(holds, F.lit(self._drops(stage))))
        frame.add_error(stage, column, "dead_letter")
        self.told.append(ErrorPlan(column, stage, "dead_letter", None, kind=kind))

    @staticmethod
    def _only(view: View, rows: Collection[RowName]) -> View:
        frame = view.frame
        wanted = [f"{sequence}/{child}" for sequence, child in rows]
        alive = frame.fresh("alive")
        name = F.concat_ws("/", F.col(SEQUENCE).cast("string"), F.col(CHILD))
        frame.df = frame.df.withColumn(alive, F.col(view.alive) & name.isin(wanted))
        return View(frame, alive, view.columns)

    def _mark_pending(self) -> None:
        """Tell each frame which of its views somebody reads: a step that is still to come, or a sink."""
        for view in self.views.values():
            view.frame.pending = []
        later = (view for port, view in self.views.items() if self.readers[port] > 0)
        for view in (*later, *self.sent):
            view.frame.pending.append(view.alive)

    def _sink(self, node: Node) -> SinkPlan:
        assert isinstance(node.config, SinkConfig)
        views = {
            name: self._with_expressions(node, view, name if self._has_several_inputs(node) else "")
            for name, view in self._inputs(node).items()
        }
        self.sent += views.values()
        if node.config.separates_inputs:
            return self._separated(node, node.config, views)
        schema = unified({name: view.frame.schema_of(view) for name, view in views.items()})
        for column, named_in in node.config.named_columns().items():
            if column not in schema and column != EVENT_ID:
                there = f"there is: {', '.join(schema)}"
                raise FieldError(
                    named_in, "unresolved-column", f'names "{column}", which is no column', there
                )
        if (read := node.config.reads) is not None:
            schema = {name: kind for name, kind in schema.items() if name in read}
        deliveries = tuple(
            SinkDelivery(
                alive=view.alive,
                columns=tuple((column, view.columns.get(column)) for column in schema),
                suffix=name if self._has_several_inputs(node) else "",
                passed=self._passed(name.partition(".")[0]),
                identity=self.identity if self.identity in view.frame.df.columns else None,
            )
            for name, view in views.items()
        )
        return SinkPlan(node.name, deliveries, schema)

    def _separated(self, node: Node, config: SinkConfig, views: Mapping[str, View]) -> SinkPlan:
        """A sink that tells its inputs apart: nothing is united, and a row says by which one it came."""
        known = config.all_inputs
        written = {str(port): self.graph.nodes[port.node].stands_for or str(port) for port in node.inputs}
        named = {written[name]: view for name, view in views.items()}
        if not named.keys() <= set(known) and len(known) > 1:
            message = "its rows come through a buffer, in which inputs cannot be told apart"
            raise FieldError("inputs", "mixed-inputs", message, "use a sink for each input")
        named = {name if name in known else known[0]: view for name, view in named.items()}
        if wrong := config.missing_columns({name: list(view.columns) for name, view in named.items()}):
            field, column, there = wrong
            message = f'names "{column}", which is no column of that input'
            raise FieldError(field, "unresolved-column", message, f"there is: {', '.join(there)}")
        schemas = {name: view.frame.schema_of(view) for name, view in named.items()}
        schema = {f"{name}.{c}": kind for name, columns in schemas.items() for c, kind in columns.items()}
        deliveries = tuple(
            SinkDelivery(
                alive=view.alive,
                columns=tuple(
                    (column, view.columns[column[len(name) + 1 :]] if column in own else None)
                    for own in [{f"{name}.{each}" for each in schemas[name]}]
                    for column in schema
                ),
                suffix=name if self._has_several_inputs(node) else "",
                passed=self._passed(name.partition(".")[0]),
                input=name,
                identity=self.identity if self.identity in view.frame.df.columns else None,
            )
            for name, view in named.items()
        )
        return SinkPlan(node.name, deliveries, schema)

    def _passed(self, node: str) -> frozenset[str]:
        return frozenset({node} | _ancestors(self.graph, node))

    @staticmethod
    def _with_expressions(node: Node, view: View, suffix: str = "") -> View:
        """The view and, as columns of it, what the sink wants computed of each row. `suffix`: as for
        `SinkDelivery`."""
        assert isinstance(node.config, SinkConfig)
        wanted = node.config.expressions()
        if not wanted:
            return view
        for name in wanted.keys() & view.columns.keys():
            message = f'the rows have a column "{name}", which is a name this sink needs for itself'
            raise FieldError(expression_field(node), "taken-name", message, "rename it with a select before")
        for name, expression in wanted.items():
            check_resolves(view, node.config.field_of(name), expression)
        values = {name: F.expr(expression).cast("string") for name, expression in wanted.items()}
        whole, made = view.frame.attempt(node.name, view, values, node.config.on_failure, suffix=suffix)
        return View(view.frame, whole.alive, {**view.columns, **made})

    def _plan(self, sinks: Mapping[str, SinkPlan]) -> Plan:
        frames = self._frames()
        if self.tells:
            for frame in frames:
                for stage, name in frame.ends or ():
                    self._tell(frame, stage, ReportKind.LEFT_OUT, F.col(name))
                frame.ends = None
        errors = [error for frame in frames for error in frame.errors]
        if self.entry is not None and not self.tells:
            # One before the entry that may fail this time, although it did not before, is heard as well.
            errors = [e for e in errors if e.answers or e.stage == self.entry or self._behind(e.stage)]
        alive = {delivery.alive for sink in sinks.values() for delivery in sink.deliveries}
        needed = {
            physical
            for sink in sinks.values()
            for delivery in sink.deliveries
            for _, physical in delivery.columns
            if physical
        }
        needed |= {self.identity} if self.identity else set()
        reasons = {error.column for error in errors}
        lineage = (SEQUENCE,) if all(frame.childless for frame in frames) else (SEQUENCE, CHILD)
        unites = any(OTHERS in frame.df.columns for frame in frames)
        parts = []
        for frame in frames:
            columns = [c for c in frame.df.columns if c in alive or c in needed or c in reasons]
            if not any(c in alive or c in reasons for c in columns):
                continue
            somewhere = reduce(Column.__or__, self._somewhere(frame, alive, reasons))
            # Spark moves a filter down through deterministic projections, and would then compute in it once
            # more what it asks for: parse every event twice, call a user's function twice.
            further = [OTHERS] if OTHERS in frame.df.columns else []
            barred = observed(frame, [*lineage, *further, *columns]).withColumn(
                _BARRIER, F.spark_partition_id()
            )
            chosen = barred.where(somewhere & (F.col(_BARRIER) >= F.lit(0)))
            parts.append(chosen.select(*lineage, *further, *columns))
        df = reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), parts)
        told = {one.column: one for one in self.told}
        answering = {error.stage for error in errors if error.answers}
        changeable = answering.union(*(self.graph.downstream(stage) for stage in answering))
        return Plan(
            df=df,
            sinks=sinks,
            errors=tuple(
                told.get(e.column)
                or ErrorPlan(
                    e.column, e.stage, e.policy, e.describe, e.answers, e.stage in changeable, suffix=e.suffix
                )
                for e in errors
            ),
            shuffled=any(frame.shuffled for frame in frames) or len(parts) > 1,
            unites=unites,
            attempts=_by_stage(errors),
            kept=self.kept,
            read_kept=frozenset(
                e.stage for e in errors if self.certain is not None and id(e) not in self.certain
            ),
        )

    def _behind(self, stage: str) -> bool:
        return self.entry is not None and stage in self.graph.downstream(self.entry)

    @staticmethod
    def _somewhere(frame: Frame, alive: set[str], reasons: set[str]) -> list[Column]:
        flags = [F.coalesce(F.col(c), F.lit(False)) for c in frame.df.columns if c in alive]
        return flags + [F.col(c).isNotNull() for c in frame.df.columns if c in reasons]

    def _report(self, node: Node, field: str, code: str, message: str, hint: str) -> None:
        line = node.field_lines.get(field, node.line)
        text = f'{node.kind} "{node.name}": {message}'
        problem = Problem(code, text, hint, file=self.graph.file, line=line)
        if self.problem is None:
            raise PipelineError([problem])
        self.failed = True
        self.problem(problem)


class _InputMissing(Exception):
    """No input of the node compiled, or none belongs to this source."""


def _by_stage(errors: Iterable[ErrorColumn]) -> dict[str, list[Attempt]]:
    found: dict[str, list[Attempt]] = {}
    for error in errors:
        if error.attempt is not None:
            found.setdefault(error.stage, []).append(error.attempt)
    return found


def _ancestors(graph: Graph, name: str) -> set[str]:
    return {other for other in graph.nodes if name in graph.downstream(other)}
