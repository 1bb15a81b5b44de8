"""The one pass that hands each row of a batch to its sinks. Runs on executors, inside `mapInArrow`.

Each sink has a thread of its own, so that a slow or failing one keeps no other waiting: every sink
gets all its rows, closes, and is done when it is done. What goes back to the driver is small: per
sink a bitmap of the origins it signed for, and the exceptions by row.

A sink that is finished while others are still at it leaves a receipt on disk (see `receipts`): if
the run is killed now, only the others are written again.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from signoff.engine.delivery.order import KeyOrder
from signoff.engine.delivery.receipts import Receipt, read_receipts, write_receipt
from signoff.engine.delivery.surprises import surprise
from signoff.engine.plan.lineage import Lineage, Numbers, joined, made_from
from signoff.engine.plan.plan import ErrorPlan, SinkDelivery
from signoff.engine.plan.task_report import RESULT_SCHEMA, ReportKind, TaskReport, pack_rows, to_batch
from signoff.errors import PermanentError, SinkError, TransientError
from signoff.ledger.sequences import from_numpy, to_bytes
from signoff.ledger.store import no_room
from signoff.log.disk_proof import prove_shared
from signoff.pipeline.model import Retry
from signoff.pipeline.secrets import KnownSecrets, redact
from signoff.sinks.contract import EVENT_ID, INPUT, ORIGIN, BatchRef, Part, Sink, Writer
from signoff.sinks.refusal import brief
from signoff.sinks.retry import deliver
from signoff.transforms.frame import DescribeError
from signoff.transforms.row_results import RowResult, parse_result

_RECEIPT_AFTER_S = 0.1
"""A sink that is done this long before the others gets a receipt; sooner, the ledger's record comes first."""

_ANSWERED = {
    RowResult.FAILED: ReportKind.ERROR,
    RowResult.WAITS: ReportKind.WAITS,
    RowResult.DROPPED: ReportKind.DROPPED,
}

Span = tuple[int, int]
Carried = Mapping[str, Mapping[str, str]]
"""By sink: see `Part.contexts`."""


@dataclass(frozen=True)
class SinkTask:
    """What a task needs to know to serve one sink."""

    name: str
    sink: Sink
    retry: Retry
    deliveries: tuple[SinkDelivery, ...]
    schema: pa.Schema
    """Columns after `event_id`."""
    attempts: int = 0
    """Tries made in earlier rounds of this batch."""
    only: Mapping[int, frozenset[str]] | None = None
    """Rows to write, as children by sequence, each with the rows made from it; None: all."""
    through: frozenset[str] | None = None
    """Of the rows made from those to write, only the ones that came out of one of these steps; None: all."""
    named_here: bool = False
    """The rows to write are named as they came to this sink, not as they came to a step in front of it."""
    says_rows: bool = False
    """What comes is said row by row, as it is where only some rows are to be written."""
    covered: tuple[Span, ...] = ()
    """Sequences (first, last) that a receipt from before a crash covers."""
    by_row: bool = False
    """What is signed for is also said row by row: it may be taken back, and rows have several origins."""
    held: bool = False
    """Nothing is written: it is only found out which events have rows for this sink."""
    ordered_by: tuple[str, ...] = ()
    """Columns: rows in which they are the same are written in order."""
    form: str = ""
    """What the rows are made by: a receipt counts for the same only."""
    published_as: int = 0
    """Not 0: the rows are published beside those of the batch, under this number (see `BatchRef.replay`)."""

    def without(self, receipts: Sequence[Receipt]) -> SinkTask:
        """The task, less what these receipts cover."""
        spans = tuple(receipt.span for receipt in receipts if receipt.sink == self.name)
        return replace(self, covered=self.covered + spans) if spans else self


@dataclass(frozen=True)
class Pass:
    """The function given to `mapInArrow`; pickled to executors."""

    batch: BatchRef
    sinks: tuple[SinkTask, ...]
    errors: tuple[ErrorPlan, ...]
    receipts: Path | None
    """Where receipts go; None when the rows of an origin may be spread over partitions."""
    carried: Carried = field(default_factory=dict)
    secrets: KnownSecrets = field(default_factory=KnownSecrets)
    """A reason may hold any secret of the pipeline, not only those of the sink that gives it."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        prove_shared()
        part = Part(self.batch, context.partitionId(), context.taskAttemptId())
        earlier = self._earlier(part) if context.attemptNumber() else []
        servers = [_Server(task.without(earlier), self._part_for(task, part)) for task in self.sinks]
        errors: list[TaskReport] = []
        changeable = {error.stage for error in self.errors if error.answers}
        span: Span | None = None
        try:
            for rows in batches:
                if rows.num_rows == 0:
                    continue
                lineage = Lineage.of(rows)
                span = lineage.widen(span)
                for server in servers:
                    server.offer(rows, lineage, self.batch.source)
                errors += self._errors(rows, lineage)
            for server in servers:
                server.finish()
            signed = [result for receipt in earlier for result in receipt.results]
            # A receipt says that its sink needs nothing more of these rows; a step that failed for one of
            # them may not fail when the pass is made again.
            certain = not any(result.name in changeable for result in errors)
            receipts = self.receipts if certain else None
            yield from self._results(servers, signed + errors, span, part, receipts)
        finally:
            for server in servers:
                server.stop()

    def _part_for(self, task: SinkTask, part: Part) -> Part:
        batch = replace(self.batch, replay=task.published_as) if task.published_as else self.batch
        return replace(part, batch=batch, contexts=self.carried.get(task.name, {}))

    def _earlier(self, part: Part) -> list[Receipt]:
        """Receipts of a try of this very task whose worker died; the driver has not seen them."""
        if self.receipts is None:
            return []
        covered = {(task.name, span) for task in self.sinks for span in task.covered}
        forms = {task.name: task.form for task in self.sinks}
        return [
            receipt
            for receipt in read_receipts(self.receipts)
            if receipt.partition == part.partition
            and (receipt.sink, receipt.span) not in covered
            and forms.get(receipt.sink) == receipt.form
        ]

    def _errors(self, rows: pa.RecordBatch, lineage: Lineage) -> list[TaskReport]:
        found: list[TaskReport] = []
        for error in self.errors:
            column = rows.column(error.column)
            if column.null_count == len(column):
                continue
            for index in np.flatnonzero(np.asarray(pc.is_valid(column))).tolist():
                kind, text = error.kind or ReportKind.ERROR, column[index].as_py()
                if error.answers:
                    answer, text = parse_result(text)
                    kind = _ANSWERED[answer]
                reason = described(error.describe, text)
                for sequence, child in lineage.at(index):
                    name = joined(child, error.suffix)
                    found.append(TaskReport(error.stage, kind, sequence, name, redact(reason)))
        return found

    def _results(
        self,
        servers: list[_Server],
        known: list[TaskReport],
        span: Span | None,
        part: Part,
        receipts: Path | None,
    ) -> Iterator[pa.RecordBatch]:
        waiting = list(servers)
        first_done: float | None = None
        unwritten: list[_Server] = []
        while waiting:
            done = [server for server in waiting if server.wait(0.02)]
            waiting = [server for server in waiting if server not in done]
            unwritten += done
            if done and first_done is None:
                first_done = time.monotonic()
            late = first_done is not None and time.monotonic() - first_done > _RECEIPT_AFTER_S
            if waiting and late and unwritten and receipts is not None and span is not None:
                for server in unwritten:
                    # The receipt it was spared this work by must not be replaced by one that says nothing.
                    if server.complete and span not in server.task.covered:
                        _sign(receipts, server, part, span)
                unwritten = []
        collected = [result for server in servers for result in server.results()] + known
        yield to_batch(collected) if collected else pa.RecordBatch.from_pylist([], schema=RESULT_SCHEMA)


def _sign(directory: Path, server: _Server, part: Part, span: Span) -> None:
    """Without a receipt the sink is written again after a kill: no reason to fail where there is no room."""
    try:
        write_receipt(directory, server.task.name, part, span, server.results(), server.task.form)
    except OSError as error:
        if not no_room(error):
            raise


def described(describe: DescribeError | None, text: str) -> str:
    """The reason of a row that a step failed on. What cannot be described is one row's bad luck: an error
    here would fail the task, and with it the batch, each time it is tried."""
    if describe is None:
        return text
    try:
        return describe(text)
    except Exception as error:  # noqa: BLE001 - whatever a strange text does to who looks at it
        return f"it does not parse, and why could not be found out ({type(error).__name__})"


@dataclass
class _Rows:
    """Rows on their way to one sink."""

    table: pa.RecordBatch
    lineage: Lineage

    def take(self, chosen: Numbers) -> _Rows:
        return _Rows(self.table.take(pa.array(chosen)), self.lineage.take(chosen))


@dataclass
class _Server:
    """One sink's thread in one task."""

    task: SinkTask
    part: Part
    _queue: queue.SimpleQueue[_Rows | None] = field(default_factory=queue.SimpleQueue)
    _signed: list[Lineage] = field(default_factory=list)
    _refused: list[TaskReport] = field(default_factory=list)
    _left: list[Lineage] = field(default_factory=list)
    _held: list[Lineage] = field(default_factory=list)
    _came: list[Lineage] = field(default_factory=list)
    _error: str = ""
    _attempts: int = 0
    _part: bytes | None = None
    _crash: BaseException | None = None
    _surprise: TaskReport | None = None
    _in_hand: _Rows | None = None
    _drained: bool = False
    _thread: threading.Thread = field(init=False)
    _order: KeyOrder = field(init=False)

    def __post_init__(self) -> None:
        self._order = KeyOrder(self.task.ordered_by)
        self._attempts = self.task.attempts
        name = f"sink-{self.task.name}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    # -- called by the task's own thread

    def offer(self, rows: pa.RecordBatch, lineage: Lineage, source: str) -> None:
        for delivery in self.task.deliveries:
            chosen = self._chosen(rows, lineage, delivery)
            if chosen is not None and (self.task.only is not None or self.task.says_rows):
                self._came.append(lineage.take(chosen).behind(delivery.suffix))
            if chosen is not None and self.task.held:
                self._held.append(lineage.take(chosen))
                self._came += _with_names(self._held[-1].behind(delivery.suffix))
            elif chosen is not None:
                self._queue.put(_rows(rows, lineage, delivery, self.task, source, chosen))

    def finish(self) -> None:
        self._queue.put(None)

    def wait(self, seconds: float) -> bool:
        self._thread.join(seconds)
        if not self._thread.is_alive() and self._crash is not None:
            raise self._crash
        return not self._thread.is_alive()

    def stop(self) -> None:
        """The task ends, perhaps by an error elsewhere: nothing more is written."""
        if self._thread.is_alive():
            self._queue.put(None)

    @property
    def complete(self) -> bool:
        return not self._left and not self.task.held

    def results(self) -> list[TaskReport]:
        name = self.task.name
        found = list(self._refused)
        if self._signed:
            number = sum(len(rows) for rows in self._signed)
            found.append(TaskReport(name, ReportKind.SIGNED, number=number, blob=_origins(self._signed)))
            if self.task.by_row:
                found.append(TaskReport(name, ReportKind.ROWS, blob=_packed(self._signed)))
        if self._held:
            found.append(TaskReport(name, ReportKind.HELD, blob=_origins(self._held)))
        if self._came:
            found.append(TaskReport(name, ReportKind.CAME, blob=_packed(self._came)))
        if self._left:
            rows = _packed(self._left)
            found.append(
                TaskReport(name, ReportKind.OWED, text=self._error, number=self._attempts, blob=rows)
            )
        if self._part is not None:
            found.append(TaskReport(name, ReportKind.PART, blob=self._part))
        if self._surprise is not None:
            found.append(self._surprise)
        return found

    def _chosen(self, rows: pa.RecordBatch, lineage: Lineage, delivery: SinkDelivery) -> Numbers | None:
        """Indices of the rows of this delivery; None when there are none."""
        alive = rows.column(delivery.alive)
        mask = np.asarray(pc.fill_null(alive, False)) if alive.null_count else np.asarray(alive)
        for first, last in self.task.covered:
            mask = mask & ~((lineage.sequences >= first) & (lineage.sequences <= last))
        chosen = np.flatnonzero(mask)
        if self.task.only is not None:
            wanted = [i for i in chosen.tolist() if self._is_wanted(lineage, i, delivery.suffix)]
            chosen = np.array(wanted, dtype=np.int64)
        return chosen if len(chosen) else None

    def _is_wanted(self, lineage: Lineage, index: int, suffix: str) -> bool:
        only, child = self.task.only or {}, joined(lineage.children[index].as_py(), suffix)
        return any(
            made_from(child, parent, self.task.through) and not self._came_otherwise(parent, child, suffix)
            for origin in lineage.origins_at(index)
            for parent in only.get(origin, ())
        )

    def _came_otherwise(self, owed: str, child: str, suffix: str) -> bool:
        """Whether a row that is owed came by another input. One that only has its name in front, because it
        came through the same node to this input, is another row, which the sink may have: `a` and `a/b`."""
        last = owed.rpartition("/")[2]
        return (
            self.task.named_here
            and owed != child
            and any(last == each.suffix != suffix for each in self.task.deliveries if each.suffix)
        )

    # -- the sink's thread

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as error:  # noqa: BLE001 - handed to the task's thread, which raises it
            self._crash = error

    def _serve(self) -> None:
        writer: Writer | None = None
        down = False
        try:
            while (rows := self._queue.get()) is not None:
                if down:
                    # The sink did not answer a moment ago: the rest waits for the next round.
                    self._left.append(rows.lineage)
                    continue
                self._in_hand = rows
                if writer is None:
                    writer = self.task.sink.open(self.part)
                down = self._write(writer, rows)
                self._in_hand = None
            self._drained = True
            if writer is not None:
                self._close(writer)
        except SinkError as error:
            self._give_back(error)
        except Exception as error:  # noqa: BLE001 - what a client raises by surprise is not the task's end
            self._surprise = surprise(self.task.name, error)
            self._give_back(TransientError(brief(f"{type(error).__name__}: {error}")))

    def _write(self, writer: Writer, rows: _Rows) -> bool:
        """Hand over rows; true when the sink seems to be down."""
        if not self.task.ordered_by:
            return self._hand_over(writer, rows)[0]
        tried = np.zeros(len(rows.lineage), bool)
        down = False
        for chosen in self._order.rounds(rows.table):
            some = rows.take(chosen)
            down, left = self._hand_over(writer, some)
            tried[chosen] = True
            self._order.leave(some.table, left)
            if down:
                break
        rest = rows.take(np.flatnonzero(~tried))
        if len(rest.lineage):
            self._left.append(rest.lineage)
        return down

    def _hand_over(self, writer: Writer, rows: _Rows) -> tuple[bool, list[int]]:
        """Whether the sink seems to be down, and the rows it is asked for again."""
        done = deliver(writer, rows.table, self.task.retry, attempts_before=self.task.attempts)
        taken = np.flatnonzero(done.taken)
        if len(taken) and not self.task.sink.observes:
            everything = len(taken) == len(done.taken)
            self._signed.append(rows.lineage if everything else rows.lineage.take(taken))
        for refusal in done.refused:
            self._refuse(rows.lineage.at(refusal.index), refusal.reason)
        if not done.left:
            return False, []
        self._left.append(rows.lineage.take(done.left))
        self._error = redact(done.error)
        self._attempts = max(self._attempts, done.attempts)
        # One row that fails says nothing of the others; none taken at all says the sink is down. After
        # the last try there is no next round to leave them to: they get their own tries now.
        down = not len(taken) and not done.refused and not done.exhausted
        return down, [] if done.exhausted else list(done.left)

    def _close(self, writer: Writer) -> None:
        if self.task.sink.atomic and self._left:
            writer.abort()
            raise TransientError(self._error)
        self._part = writer.close()

    def _give_back(self, error: SinkError) -> None:
        """Opening or closing failed: what was not signed for is owed, or refused if that is final.

        Of an atomic sink nothing counts that is not closed.
        """
        rest = [rows.lineage for rows in self._remaining()]
        if self.task.sink.atomic:
            rest, self._signed, self._part = self._signed + rest, [], None
        self._error = redact(str(error)) or type(error).__name__
        self._attempts = max(self._attempts, self.task.attempts + 1)
        if not isinstance(error, PermanentError):
            self._left += rest
            return
        for part in rest:
            for index in range(len(part)):
                self._refuse(part.at(index), self._error)

    def _remaining(self) -> Iterator[_Rows]:
        if self._in_hand is not None:
            yield self._in_hand
        while not self._drained and (rows := self._queue.get()) is not None:
            yield rows

    def _refuse(self, row: Sequence[tuple[int, str]], reason: str) -> None:
        """`row`: named once for each of its origins."""
        for sequence, child in row:
            self._refused.append(
                TaskReport(self.task.name, ReportKind.REFUSED, sequence, child, redact(reason))
            )


def _rows(
    rows: pa.RecordBatch,
    lineage: Lineage,
    delivery: SinkDelivery,
    task: SinkTask,
    source: str,
    chosen: Numbers,
) -> _Rows:
    schema, sink = task.schema, task.sink
    everything = len(chosen) == rows.num_rows
    indices = None if everything else pa.array(chosen)
    mine = (lineage if everything else lineage.take(chosen)).behind(delivery.suffix)
    if not sink.wants_ids:
        arrays = [pa.nulls(len(chosen), pa.string())]
    elif delivery.identity is None:
        arrays = [event_ids(source, mine.sequences, mine.children)]
    else:
        given = rows.column(delivery.identity)
        arrays = [_made_ids(given if indices is None else given.take(indices), mine.children)]
    for field_, (_, physical) in zip(schema, delivery.columns, strict=True):
        if physical is None:
            arrays.append(pa.nulls(len(chosen), field_.type))
        else:
            column = rows.column(physical)
            arrays.append(column if indices is None else column.take(indices))
    names = [EVENT_ID, *schema.names]
    if delivery.input is not None:
        names.append(INPUT)
        arrays.append(pa.repeat(pa.scalar(delivery.input), len(chosen)))
    if sink.wants_origins:
        names.append(ORIGIN)
        arrays.append(mine.origin_lists())
    return _Rows(pa.RecordBatch.from_arrays(arrays, names=names), mine)


def event_ids(source: str, sequences: Numbers, children: pa.Array) -> pa.Array:
    """`source/sequence` or `source/sequence/child` for each row."""
    numbers = pc.cast(pa.array(sequences), pa.string())
    plain = pc.binary_join_element_wise(pa.scalar(source), numbers, "/")
    if pc.max(pc.binary_length(children)).as_py() == 0:
        return plain
    full = pc.binary_join_element_wise(plain, children, "/")
    return pc.if_else(pc.equal(children, ""), plain, full)


def _made_ids(given: pa.Array, children: pa.Array) -> pa.Array:
    """Ids of rows that had one already when they came, and of the rows made from them."""
    if pc.max(pc.binary_length(children)).as_py() == 0:
        return given
    return pc.if_else(pc.equal(children, ""), given, pc.binary_join_element_wise(given, children, "/"))


def _with_names(rows: Lineage) -> list[Lineage]:
    """Of some rows those that are not all that was made of their event."""
    named = np.flatnonzero(np.asarray(pc.fill_null(pc.not_equal(rows.children, ""), False)))
    return [rows.take(named)] if len(named) else []


def _origins(rows: Sequence[Lineage]) -> bytes:
    return to_bytes(from_numpy(np.concatenate([part.origins() for part in rows])))


def _packed(rows: Sequence[Lineage]) -> bytes:
    return pack_rows([part.by_origin() for part in rows])
