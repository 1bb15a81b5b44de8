"""Rows of several events through the pass, the verdict and the ledger, without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from pyroaring import BitMap64

from signoff.engine.batch.letters import to_store
from signoff.engine.batch.verdict import Round, ask_for_new_rows, judge
from signoff.engine.delivery.sink_pass import Pass, SinkTask
from signoff.engine.plan.lineage import Lineage
from signoff.engine.plan.plan import ErrorPlan, SinkDelivery
from signoff.engine.plan.task_report import ReportKind, TaskReport, from_table
from signoff.errors import TransientError
from signoff.ledger import Ledger, Outcome, RowOutcome, RowRef
from signoff.ledger import outcome as words
from signoff.ledger.batch_state import Untried
from signoff.ledger.sequences import from_bytes
from signoff.pipeline.model import OnFailure, Retry, SinkConfig
from signoff.sinks.contract import BatchRef, Part, Refusal, Sink, Writer
from signoff.transforms import united_rows

BATCH = BatchRef("incoming", 0, 6)
ROWS = pa.RecordBatch.from_pylist(
    [
        {"_sequence": 0, "_child": "~a", "_others": [2, 5], "alive": True, "error": None},
        {"_sequence": 1, "_child": "", "_others": None, "alive": True, "error": None},
        {"_sequence": 2, "_child": "~b", "_others": [3], "alive": True, "error": None},
        {"_sequence": 3, "_child": "", "_others": [4], "alive": None, "error": "no"},
    ],
    schema=pa.schema(
        [
            ("_sequence", pa.int64()),
            ("_child", pa.string()),
            ("_others", pa.list_(pa.int64())),
            ("alive", pa.bool_()),
            ("error", pa.string()),
        ]
    ),
)
"""0, 2 and 5 are one row; 2 is also in another, with 3; 1 is itself; a step fails for a row of 3 and 4."""


@dataclass(frozen=True)
class Toy(Sink):
    """Answers as told, by event id; keeps what it took."""

    refused: frozenset[str] = frozenset()
    left: frozenset[str] = frozenset()
    broken: bool = False
    taken: ClassVar[list[str]] = []

    def open(self, part: Part) -> Writer:
        return _ToyWriter(self)


@dataclass(frozen=True)
class AtomicToy(Toy):
    atomic: ClassVar[bool] = True


@dataclass
class _ToyWriter(Writer):
    toy: Toy

    def write(self, rows: pa.RecordBatch) -> Sequence[Refusal]:
        if self.toy.broken:
            raise TransientError("down")
        ids = rows.column(0).to_pylist()
        bad = self.toy.refused | self.toy.left
        Toy.taken += [name for name in ids if name not in bad]
        return [Refusal(i, "bad", name in self.toy.left) for i, name in enumerate(ids) if name in bad]

    def close(self) -> bytes | None:
        return b"part"


@pytest.fixture(autouse=True)
def one_task(monkeypatch: pytest.MonkeyPatch) -> None:
    context = SimpleNamespace(partitionId=lambda: 0, taskAttemptId=lambda: 0, attemptNumber=lambda: 0)
    monkeypatch.setattr("signoff.engine.delivery.sink_pass.TaskContext", SimpleNamespace(get=lambda: context))
    Toy.taken.clear()


def one_pass(sink: Sink, **task: Any) -> list[TaskReport]:
    """What a task says of `ROWS`."""
    retry = Retry(attempts=None, initial_ms=0, max_ms=0)
    delivery = SinkDelivery("alive", (), "")
    served = SinkTask("out", sink, retry, (delivery,), pa.schema([]), **task)
    errors = (ErrorPlan("error", "step", "dead_letter", None),)
    (batch,) = Pass(BATCH, (served,), errors, None)([ROWS])
    return from_table(batch)


def verdict_of(
    results: list[TaskReport], policy: OnFailure = "dead_letter", *, atomic: bool = False, **state: Any
) -> Round:
    config = SinkConfig(type="toy", on_failure=policy, retry=Retry(attempts=state.pop("attempts", None)))
    asked = {"out": (config, Untried(state.get("owed")))}
    commit = (lambda *_: "disk full") if atomic else (lambda *_: None)
    return judge(results, asked, {"step": policy}, commit, {"out"} if atomic else set(), 0.0)


def recorded(path: Path, verdict: Round) -> Ledger:
    ledger = Ledger(path / "ledger.db")
    ledger.open_batch("incoming", BATCH.start, BATCH.end, ["out"])
    ledger.record(
        "incoming",
        BATCH.start,
        BATCH.end,
        delivered=verdict.delivered,
        outcomes=verdict.outcomes,
        sinks=verdict.sinks,
        owed=verdict.owed,
        rows=verdict.rows,
    )
    return ledger


def test_a_row_that_is_taken_is_signed_for_all_its_origins() -> None:
    (signed,) = [result for result in one_pass(Toy()) if result.kind == ReportKind.SIGNED]
    assert (signed.number, set(from_bytes(signed.blob))) == (3, {0, 1, 2, 3, 5})
    assert Toy.taken == ["incoming/0/~a", "incoming/1", "incoming/2/~b"]


def test_a_step_that_fails_for_a_row_fails_for_all_its_origins() -> None:
    failed = [(r.sequence, r.child) for r in one_pass(Toy()) if r.kind == ReportKind.ERROR]
    assert failed == [(3, ""), (4, "")]


def test_a_held_sink_is_said_to_owe_all_origins_of_its_rows() -> None:
    (held,) = [result for result in one_pass(Toy(), held=True) if result.kind == ReportKind.HELD]
    assert set(from_bytes(held.blob)) == {0, 1, 2, 3, 5} and Toy.taken == []


@pytest.mark.parametrize(
    ("policy", "counted"),
    [("dead_letter", "dead_lettered"), ("refuse", "refused"), ("drop", "dropped")],
)
def test_a_refused_row_gives_each_origin_the_outcome_and_the_account_balances(
    tmp_path: Path, policy: OnFailure, counted: str
) -> None:
    verdict = verdict_of(one_pass(Toy(refused=frozenset({"incoming/0/~a"}))), policy)
    refused = {o.row for o in verdict.outcomes if o.stage == "out"}
    assert refused == {RowRef(0, "~a"), RowRef(2, "~a"), RowRef(5, "~a")}
    with recorded(tmp_path, verdict) as ledger:
        account = ledger.account("incoming", 6)
    # 3 was delivered with 2, but a step failed for another row of it; by policy "drop" that is no matter.
    worst = {"dead_letter": {0, 2, 3, 4, 5}, "refuse": {0, 2, 3, 4, 5}, "drop": {0, 4, 5}}[policy]
    assert account.balanced and account.in_flight == 0
    assert (getattr(account, counted), account.delivered) == (len(worst), 6 - len(worst))


def test_an_origin_of_two_rows_is_owed_until_both_are_taken(tmp_path: Path) -> None:
    results = one_pass(Toy(left=frozenset({"incoming/2/~b"})))
    verdict = verdict_of(results)
    assert verdict.sinks["out"].wanted_rows == (RowRef(2, "~b"), RowRef(3, "~b"))
    with recorded(tmp_path, verdict) as ledger:
        assert ledger.batch("incoming", 0, 6).owed == BitMap64([2, 3])  # type: ignore[union-attr]
        assert ledger.account("incoming", 6).delivered == 3, "0, 1 and 5; a step failed for 4"


def test_a_row_that_is_owed_is_found_again_by_any_of_its_origins() -> None:
    for origin in (0, 2, 5):
        Toy.taken.clear()
        one_pass(Toy(), only={origin: frozenset({"~a"})})
        assert Toy.taken == ["incoming/0/~a"]
    Toy.taken.clear()
    one_pass(Toy(), only={2: frozenset({""})})
    assert Toy.taken == ["incoming/0/~a", "incoming/2/~b"], "all that was made of 2"


def test_a_sink_that_is_down_owes_the_whole_batch_with_all_origins() -> None:
    verdict = verdict_of(one_pass(Toy(broken=True)))
    assert verdict.owed == BitMap64([0, 1, 2, 3, 5])
    assert verdict.sinks["out"].wants_all


def test_a_commit_that_is_given_up_leaves_the_rows_by_their_own_names() -> None:
    verdict = verdict_of(one_pass(AtomicToy(), by_row=True), atomic=True, attempts=1)
    rows = {o.row for o in verdict.outcomes if o.stage == "out"}
    assert rows == {
        *(RowRef(n, "~a") for n in (0, 2, 5)),
        *(RowRef(n, "~b") for n in (2, 3)),
        RowRef(1),
    }


def test_whatever_is_made_of_the_events_now_is_asked_for_when_an_owed_row_is_gone() -> None:
    owed = (RowRef(0, "~old"), RowRef(5, "~old"), RowRef(1))
    results = one_pass(Toy(), only={0: frozenset({"~old"}), 5: frozenset({"~old"}), 1: frozenset({""})})
    verdict = verdict_of(results, owed=owed)
    assert verdict.sinks["out"].done
    ask_for_new_rows(verdict, results, {"out": Untried(owed)})
    asked = verdict.sinks["out"]
    assert asked.wanted_rows == (RowRef(0), RowRef(5)) and not asked.done
    assert verdict.owed == BitMap64([0, 5])
    results = one_pass(Toy(), only={0: frozenset({""}), 5: frozenset({""})})
    again = verdict_of(results, owed=asked.wanted_rows)
    ask_for_new_rows(again, results, {"out": asked})
    assert Toy.taken == ["incoming/1", "incoming/0/~a"] and again.sinks["out"].done


def test_a_letter_is_stored_for_every_origin_of_a_row_if_one_of_them_is_still_owed() -> None:
    rows = [RowRef(0, "~a"), RowRef(2, "~a"), RowRef(1, "0"), RowRef(2, "~b/0"), RowRef(3, "~b/0")]
    dead = [RowOutcome(row, "out", Outcome.DEAD_LETTERED, "bad") for row in rows]
    assert [o.row for o in to_store(dead, BitMap64([0]))] == rows[:2]
    assert [o.row for o in to_store(dead, BitMap64([1, 3]))] == rows[2:]


def test_ledger_and_transforms_know_a_united_row_by_the_same_sign() -> None:
    assert words.UNITED == united_rows.UNITED
    assert words.is_united(united_rows.united_child([(1, ""), (2, "")]))
    assert not words.is_united("0/a~b")


def test_the_name_of_a_united_row_depends_on_all_rows_in_it_and_not_on_their_order() -> None:
    name = united_rows.united_child([(3, ""), (10, "0")])
    assert name == united_rows.united_child([(10, "0"), (3, "")])
    assert (
        len({name, united_rows.united_child([(3, "")]), united_rows.united_child([(3, ""), (10, "1")])}) == 3
    )


def test_rows_without_further_origins_cost_nothing() -> None:
    plain = Lineage.of(ROWS.slice(1, 1))
    assert plain.others is None and plain.origins() is plain.sequences
