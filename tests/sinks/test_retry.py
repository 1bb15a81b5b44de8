"""Which rows are asked for again, how often, and after which wait."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given

from signoff.errors import PermanentError, TransientError
from signoff.pipeline.model import Retry
from signoff.sinks.contract import Refusal, Writer
from signoff.sinks.retry import deliver, next_wait_s
from signoff.testing.conformance.rows import numbered, places

Answer = Sequence[Refusal] | Exception


class Scripted(Writer):
    """Answers each write with the next item of a script, then takes everything."""

    def __init__(self, *answers: Answer | Callable[[pa.RecordBatch], Answer]) -> None:
        self.answers = list(answers)
        self.asked: list[list[int]] = []

    def write(self, rows: pa.RecordBatch) -> Sequence[Refusal]:
        self.asked.append(rows.column("number").to_pylist())
        answer = self.answers.pop(0) if self.answers else []
        if callable(answer):
            answer = answer(rows)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> bytes | None:
        return None


def transient(*indexes: int) -> list[Refusal]:
    return [Refusal(index, f"busy with {index}", transient=True) for index in indexes]


def permanent(*indexes: int) -> list[Refusal]:
    return [Refusal(index, "wrong", transient=False) for index in indexes]


def no_sleep(_: float) -> None:
    pass


def test_rows_that_are_taken_at_once_are_written_once() -> None:
    writer = Scripted()
    done = deliver(writer, numbered(3), Retry(), sleep=no_sleep)
    assert (places(done.taken), done.refused, done.left, done.attempts) == ([0, 1, 2], [], [], 1)
    assert (done.error, done.exhausted, writer.asked) == ("", False, [[0, 1, 2]])


def test_only_rows_that_failed_are_asked_for_again() -> None:
    writer = Scripted(transient(2, 4), transient(1))
    done = deliver(writer, numbered(6), Retry(), sleep=no_sleep)
    assert writer.asked == [[0, 1, 2, 3, 4, 5], [2, 4], [4]]
    assert (places(done.taken), done.left, done.attempts) == ([0, 1, 2, 3, 4, 5], [], 3)


def test_refused_row_keeps_its_place_and_is_not_asked_for_again() -> None:
    writer = Scripted([*transient(1, 3), *permanent(0)], permanent(1))
    done = deliver(writer, numbered(4), Retry(), sleep=no_sleep)
    assert [(one.index, one.reason, one.transient) for one in done.refused] == [
        (0, "wrong", False),
        (3, "wrong", False),
    ]
    assert (places(done.taken), done.left, writer.asked) == ([1, 2], [], [[0, 1, 2, 3], [1, 3]])


def test_transient_error_fails_all_rows_that_were_asked_for() -> None:
    writer = Scripted(transient(1), TransientError("gone"), TransientError("gone"))
    done = deliver(writer, numbered(2), Retry(attempts=3), sleep=no_sleep)
    assert (places(done.taken), done.left, done.error, done.exhausted) == ([0], [1], "gone", True)


def test_permanent_error_refuses_what_was_asked_for_and_no_more() -> None:
    writer = Scripted(transient(1), PermanentError("no such table"))
    done = deliver(writer, numbered(2), Retry(), sleep=no_sleep)
    assert [(one.index, one.reason) for one in done.refused] == [(1, "no such table")]
    assert (places(done.taken), done.left) == ([0], [])


def test_tries_end_at_the_number_of_attempts_those_before_included() -> None:
    writer = Scripted(*[transient(0)] * 9)
    done = deliver(writer, numbered(1), Retry(attempts=5), attempts_before=3, sleep=no_sleep)
    assert (done.attempts, done.left, done.error, done.exhausted) == (5, [0], "busy with 0", True)
    assert len(writer.asked) == 2


def test_waits_stay_within_the_budget_and_the_rest_is_handed_back() -> None:
    writer = Scripted(*[transient(0)] * 99)
    waits: list[float] = []
    done = deliver(
        writer, numbered(1), Retry(initial_ms=100, max_ms=60_000), budget_s=1.0, sleep=waits.append
    )
    assert sum(waits) <= 1.0
    assert (done.left, done.exhausted, done.attempts) == ([0], False, len(waits) + 1)
    assert len(waits) >= 3


def test_one_try_is_made_without_any_budget() -> None:
    writer = Scripted(transient(0))
    done = deliver(writer, numbered(1), Retry(), attempts_before=40, budget_s=0, sleep=no_sleep)
    assert (done.attempts, done.left) == (41, [0])


def test_later_rounds_begin_with_the_wait_their_attempts_call_for() -> None:
    waits: list[float] = []
    writer = Scripted(transient(0), transient(0))
    retry = Retry(initial_ms=100, max_ms=60_000)
    deliver(writer, numbered(1), retry, attempts_before=3, budget_s=99, sleep=waits.append)
    assert 0.4 <= waits[0] <= 0.8
    assert 0.8 <= waits[1] <= 1.6


def test_secrets_do_not_reach_a_reason() -> None:
    writer = Scripted(TransientError("cannot reach postgresql://user:hunter2hunter2@host/db"))
    done = deliver(writer, numbered(1), Retry(attempts=1), sleep=no_sleep)
    assert "hunter2" not in done.error
    assert "user:***@host" in done.error


def test_error_that_is_no_sink_error_is_not_swallowed() -> None:
    with pytest.raises(ZeroDivisionError):
        deliver(Scripted(ZeroDivisionError()), numbered(1), Retry(), sleep=no_sleep)


@given(
    st.integers(0, 10_000), st.integers(0, 100_000), st.integers(0, 3_000), st.floats(0, 1, exclude_max=True)
)
def test_wait_doubles_up_to_the_longest_with_at_most_half_taken_off(
    initial_ms: int, max_ms: int, attempts: int, chance: float
) -> None:
    wait = next_wait_s(Retry(initial_ms=initial_ms, max_ms=max_ms), attempts, lambda: chance)
    longest = min(initial_ms * 2 ** max(attempts - 1, 0), max_ms) / 1000
    assert longest / 2 <= wait <= longest + 1e-9


@given(
    st.lists(
        st.lists(st.sampled_from(["take", "transient", "permanent"]), min_size=5, max_size=5), max_size=6
    )
)
def test_every_row_has_exactly_one_fate(script: list[list[str]]) -> None:
    def answer(fates: list[str]) -> Callable[[pa.RecordBatch], Answer]:
        def refusals(rows: pa.RecordBatch) -> Answer:
            asked = enumerate(rows.column("number").to_pylist())
            return [Refusal(i, "x", fates[n] == "transient") for i, n in asked if fates[n] != "take"]

        return refusals

    done = deliver(Scripted(*map(answer, script)), numbered(5), Retry(attempts=4), sleep=no_sleep)
    assert sorted([*places(done.taken), *(one.index for one in done.refused), *done.left]) == [0, 1, 2, 3, 4]
