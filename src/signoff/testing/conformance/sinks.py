"""What the contract says of every sink, asked of every sink by the same tests.

What a target says of itself decides which questions are asked: `upserts`, `can_be_down`, `row_by_row`,
`outlives_processes`, and `sink.atomic`. A question that does not concern a sink is skipped, with the reason.
"""

from __future__ import annotations

import functools
import os
import pickle
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from operator import itemgetter
from typing import Any, ClassVar, TypeVar

import pyarrow as pa
import pytest

from signoff.errors import SinkError, TransientError
from signoff.pipeline.model import Retry, SinkConfig
from signoff.sinks.contract import EVENT_ID, BatchRef, Part, Sink
from signoff.sinks.retry import deliver
from signoff.testing.conformance.described import describes_itself
from signoff.testing.conformance.rows import (
    batch_ref,
    comparable,
    every_type,
    numbered,
    places,
    spoiled,
    write_batch,
    write_part,
)

Row = dict[str, Any]
Question = TypeVar("Question", bound=Callable[..., None])


class SinkTarget(ABC):
    """A sink under test, and the place behind it. Made anew, and empty, for each question."""

    sink: Sink
    """Ready to be used: `prepare` has been called where it is needed."""
    upserts: ClassVar[bool] = True
    """What is written again takes the place of the first. False: it delivers at least once (a queue, a
    terminal, a webhook cannot take anything back)."""
    row_by_row: ClassVar[bool] = False
    """`write` has delivered when it returns: a row that was taken is there before `close`."""
    can_be_down: ClassVar[bool] = True
    """It can be made to fail: `down` and `up` work."""
    outlives_processes: ClassVar[bool] = True
    """What it holds can be read by another process than the one that wrote it."""

    @abstractmethod
    def read(self, schema: pa.Schema) -> list[Row]:
        """All visible rows in their order, as the Python values Arrow gives for the types of `schema`."""

    def down(self) -> None:
        """Make every write fail for a reason that may go away: take away the directory, stop the server."""
        raise NotImplementedError("say can_be_down = False if there is no way to take it down")

    def up(self) -> None:
        """Undo `down`."""

    @property
    def atomic(self) -> bool:
        return self.sink.atomic


NEEDS = {
    "upserts": "it delivers at least once: what was written cannot be taken back",
    "atomic": "each row is visible when it is written",
    "row_by_row": "it signs for rows when a part is closed, or a batch committed",
    "can_be_down": "it is never down",
    "outlives_processes": "what it holds is gone with the process that wrote it",
}
"""What a question may need of a target, and why it is not asked otherwise."""


def needs(name: str, *, kills: bool = False) -> Callable[[Question], Question]:
    """A question for targets that say so."""

    def decorate(question: Question) -> Question:
        @functools.wraps(question)
        def asked(self: Any, target: SinkTarget) -> None:
            if not getattr(target, name):
                pytest.skip(NEEDS[name])
            question(self, target)

        asked.needs, asked.kills = name, kills  # type: ignore[attr-defined]
        return asked  # type: ignore[return-value]

    return decorate


class SinkConformance:
    """Subclass it as `TestSomething`, and give it a fixture `target` that makes a SinkTarget."""

    def test_rows_of_every_type_come_back_as_they_were(self, target: SinkTarget) -> None:
        rows = every_type()
        assert write_batch(target.sink, rows) == []
        assert comparable(target.read(rows.schema)) == comparable(rows.to_pylist())

    def test_slices_of_a_larger_batch_are_written_without_their_neighbours(self, target: SinkTarget) -> None:
        rows = every_type().slice(2, 2)
        assert write_batch(target.sink, rows) == []
        assert comparable(target.read(rows.schema)) == comparable(rows.to_pylist())

    def test_sink_survives_the_way_to_an_executor(self, target: SinkTarget) -> None:
        target.sink = pickle.loads(pickle.dumps(target.sink))
        rows = numbered(3)
        assert write_batch(target.sink, rows) == []
        assert target.read(rows.schema) == rows.to_pylist()

    @needs("upserts")
    def test_replayed_batch_takes_the_place_of_the_first(self, target: SinkTarget) -> None:
        write_batch(target.sink, numbered(5, text="first"), attempt=1)
        write_batch(target.sink, numbered(5, text="second"), attempt=2)
        assert target.read(numbered(0).schema) == numbered(5, text="second").to_pylist()

    @needs("upserts")
    def test_commit_may_be_repeated(self, target: SinkTarget) -> None:
        rows = numbered(4)
        _, part = write_part(target.sink, rows, batch_ref())
        parts = [part] if part is not None else []
        target.sink.commit(batch_ref(), parts)
        target.sink.commit(batch_ref(), parts)
        assert target.read(rows.schema) == rows.to_pylist()

    def test_prepare_may_be_repeated_and_leaves_what_is_there(self, target: SinkTarget) -> None:
        """It comes again with every start of the engine."""
        write_batch(target.sink, numbered(3))
        found = target.read(numbered(0).schema)
        again = pickle.loads(pickle.dumps(target.sink))
        again.prepare()
        again.release()
        again.release()
        write_batch(target.sink, numbered(2, start=3), batch_ref(3, 5))
        everything = target.read(numbered(0).schema)
        assert everything in (numbered(5).to_pylist(), numbered(2, start=3).to_pylist())
        assert found == numbered(3).to_pylist()

    def test_parts_of_a_batch_are_united_in_the_order_of_their_partitions(self, target: SinkTarget) -> None:
        rows = numbered(9)
        written = [
            write_part(target.sink, rows.slice(3 * n, 3), batch_ref(), n, 70 - n)[1] for n in (2, 0, 1)
        ]
        target.sink.commit(batch_ref(), [part for part in written if part is not None])
        assert target.read(rows.schema) == rows.to_pylist()

    def test_batches_do_not_disturb_each_other(self, target: SinkTarget) -> None:
        write_batch(target.sink, numbered(2), batch_ref(0, 2))
        write_batch(target.sink, numbered(2, start=2), batch_ref(2, 4))
        assert target.read(numbered(0).schema) == numbered(4).to_pylist()

    def test_rows_replayed_on_their_own_leave_the_rest_of_the_batch(self, target: SinkTarget) -> None:
        write_batch(target.sink, numbered(2), batch_ref(0, 3))
        write_batch(target.sink, numbered(1, start=2), batch_ref(0, 3, replay=1))
        found = sorted(target.read(numbered(0).schema), key=itemgetter("number"))
        assert found == numbered(3).to_pylist()

    def test_writes_of_one_task_add_up(self, target: SinkTarget) -> None:
        rows = numbered(6)
        writer = target.sink.open(Part(batch_ref(), 0, 0))
        for start in (0, 2, 4):
            assert list(writer.write(rows.slice(start, 2))) == []
        part = writer.close()
        target.sink.commit(batch_ref(), [part] if part is not None else [])
        assert target.read(rows.schema) == rows.to_pylist()

    @needs("atomic")
    def test_atomic_sink_shows_nothing_before_commit(self, target: SinkTarget) -> None:
        _, part = write_part(target.sink, numbered(3), batch_ref())
        assert target.read(numbered(0).schema) == []
        assert part is not None

    @needs("atomic")
    def test_aborted_part_of_an_atomic_sink_leaves_nothing(self, target: SinkTarget) -> None:
        writer = target.sink.open(Part(batch_ref(), 0, 1))
        writer.write(numbered(3))
        writer.abort()
        writer.abort()
        write_batch(target.sink, numbered(2), batch_ref())
        assert target.read(numbered(0).schema) == numbered(2).to_pylist()

    @needs("atomic")
    def test_part_of_a_lost_task_is_not_in_the_batch(self, target: SinkTarget) -> None:
        """Spark has run a task twice: both have closed, one is committed."""
        write_part(target.sink, numbered(3, text="lost"), batch_ref(), 0, 1)
        _, part = write_part(target.sink, numbered(3), batch_ref(), 0, 2)
        assert part is not None
        target.sink.commit(batch_ref(), [part])
        assert target.read(numbered(0).schema) == numbered(3).to_pylist()

    def test_part_without_rows_is_nothing(self, target: SinkTarget) -> None:
        writer = target.sink.open(Part(batch_ref(), 0, 0))
        assert list(writer.write(numbered(0))) == []
        part = writer.close()
        target.sink.commit(batch_ref(), [part] if part is not None else [])
        assert target.read(numbered(0).schema) == []

    def test_row_that_cannot_be_written_is_refused_alone_and_for_good(self, target: SinkTarget) -> None:
        rows = spoiled(10, {3, 7})
        refusals = write_batch(target.sink, rows)
        assert [(one.index, one.transient) for one in refusals] == [(3, False), (7, False)]
        assert "not valid UTF-8 (byte 0xff at 7)" in refusals[0].reason
        ids = [row[EVENT_ID] for row in target.read(rows.schema)]
        assert ids == [f"incoming/{number}" for number in range(10) if number not in (3, 7)]

    def test_time_no_calendar_holds_is_refused_alone(self, target: SinkTarget) -> None:
        micros = pa.array([0, 2**62, None, -(2**62)], pa.int64())
        days = pa.array([0, 0, 2**30, 0], pa.int32())
        nested = pa.array([[0], [0], [0], [2**62]], pa.list_(pa.int64())).cast(
            pa.list_(pa.timestamp("us", "UTC"))
        )
        rows = pa.record_batch(
            {
                EVENT_ID: [f"incoming/{number}" for number in range(4)],
                "at": micros.cast(pa.timestamp("us", "UTC")),
                "day": days.cast(pa.date32()),
                "times": nested,
            }
        )
        refusals = write_batch(target.sink, rows)
        assert [(one.index, one.transient) for one in refusals] == [(1, False), (2, False), (3, False)]
        assert "years 1 to 9999" in refusals[0].reason
        assert len(target.read(rows.schema)) == 1

    @needs("can_be_down")
    def test_sink_that_is_down_fails_transiently_and_goes_on_when_it_is_back(
        self, target: SinkTarget
    ) -> None:
        rows = numbered(6)
        target.down()
        try:
            refusals = write_batch(target.sink, rows)
            assert [(one.index, one.transient) for one in refusals] == [(index, True) for index in range(6)]
        except TransientError as error:
            assert str(error)
        finally:
            target.up()
        assert write_batch(target.sink, rows) == []
        assert target.read(rows.schema) == rows.to_pylist()

    @needs("row_by_row")
    def test_open_writer_goes_on_after_the_sink_was_down(self, target: SinkTarget) -> None:
        writer = target.sink.open(Part(batch_ref(), 0, 0))
        assert list(writer.write(numbered(2))) == []
        target.down()
        down = deliver(writer, numbered(2, start=2), Retry(initial_ms=1, max_ms=1), budget_s=0.01)
        target.up()
        assert (places(down.taken), down.refused, down.left, down.exhausted) == ([], [], [0, 1], False)
        again = deliver(writer, numbered(2, start=2), Retry(), attempts_before=down.attempts)
        assert (places(again.taken), again.attempts) == ([0, 1], down.attempts + 1)
        writer.close()
        assert target.read(numbered(0).schema) == numbered(4).to_pylist()

    @needs("outlives_processes", kills=True)
    def test_killed_at_any_moment_and_done_again_every_row_is_there(self, target: SinkTarget) -> None:
        """SIGKILL after `write`, after `close` and after `commit`; then the batch comes again, whole."""
        write_batch(target.sink, numbered(2), batch_ref(0, 2))
        rows = numbered(4, start=2)
        kill_tasks(target.sink, rows, batch_ref(2, 6))
        write_batch(target.sink, rows, batch_ref(2, 6), attempt=9)
        found = target.read(rows.schema)
        if target.upserts:
            assert found == numbered(6).to_pylist()
        else:
            assert [row for row in numbered(6).to_pylist() if row not in found] == []
            assert [row for row in found if row not in numbered(6).to_pylist()] == []

    def test_type_without_a_form_is_a_sink_error_that_names_it(self, target: SinkTarget) -> None:
        rows = pa.record_batch(
            {EVENT_ID: ["incoming/0"], "odd": pa.array([(1, 2, 3)], pa.month_day_nano_interval())}
        )
        with pytest.raises(SinkError, match=r"(?i)interval") as raised:
            write_batch(target.sink, rows)
        assert not isinstance(raised.value, TransientError)


class SinkTypeConformance:
    """What the config of a sink must say of itself; give it `config_type`."""

    config_type: ClassVar[type[SinkConfig]]

    def test_the_type_describes_itself(self) -> None:
        describes_itself(self.config_type, "sink")


def kill_tasks(sink: Sink, rows: pa.RecordBatch, batch: BatchRef) -> None:
    """Have other processes write the rows, each of which is killed right after one of its steps."""
    done = subprocess.run(
        [sys.executable, "-m", "signoff.testing.killed_task"],
        input=pickle.dumps((sink, rows, batch)),
        env={**os.environ, "PYTHONPATH": python_path()},
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr.decode()


def python_path() -> str:
    """Where this process looks for modules: a process that it starts is to find the same ones."""
    return os.pathsep.join(filter(None, dict.fromkeys([*sys.path, os.environ.get("PYTHONPATH", "")])))
