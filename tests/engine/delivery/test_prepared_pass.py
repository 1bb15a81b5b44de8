"""Plans that stand: what is counted with a job is that job's, also when two run at once. Without Spark."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import pytest

from signoff.engine.delivery import prepared_pass
from signoff.engine.delivery.prepared_pass import PreparedPass
from signoff.sinks.contract import BatchRef


class Job:
    """A plan: what it has counted is of the job that began last."""

    def __init__(self) -> None:
        self.told = threading.local()
        self.counted = 0
        self.running = threading.Lock()
        self.df, self.ready = self, nullcontext

    def toArrow(self) -> Any:  # noqa: N802 - Spark's name
        assert self.running.acquire(blocking=False), "two jobs of one plan at once"
        self.counted = Reader.told.size
        time.sleep(0.002)
        self.running.release()
        if self.counted == 13:
            raise RuntimeError("it fails")
        return f"{self.counted} rows"


class Reader:
    told = threading.local()

    def tell(self, start: int, end: int, note: Any, stamps: Any) -> int:
        Reader.told.size = end - start
        return 1


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Job]]:
    made: list[Job] = []

    def plan(self: PreparedPass, *key: Any) -> Job:
        made.append(Job())
        return made[-1]

    monkeypatch.setattr(PreparedPass, "_plan", plan)
    monkeypatch.setattr(prepared_pass, "ended", lambda df: {"chosen": df.counted})
    return made


def prepared() -> PreparedPass:
    unused: Any = None
    return PreparedPass("s", ["out"], Reader(), unused, unused, unused)  # type: ignore[arg-type]


def test_counts_belong_to_the_batch_they_are_returned_with(plans):
    one = prepared()
    one.prepare()

    def run(size: int) -> bool:
        return one.run(BatchRef("s", 0, size), {"out": 0}, True) == (f"{size} rows", {"chosen": size})

    with ThreadPoolExecutor(2) as threads:
        assert all(threads.map(run, range(100, 200)))
    assert len(plans) <= 2, "each thread reuses what is idle"


def test_a_plan_whose_job_failed_is_used_again(plans):
    one = prepared()
    for size in (13, 5, 13, 6):
        if size == 13:
            with pytest.raises(RuntimeError):
                one.run(BatchRef("s", 0, size), {"out": 0}, True)
        else:
            assert one.run(BatchRef("s", 0, size), {"out": 0}, True)[1] == {"chosen": size}
    assert len(plans) == 1


def test_a_pass_without_errors_counts_nothing(plans):
    assert prepared().run(BatchRef("s", 0, 9), {"out": 0}, False) == ("9 rows", {})
