"""The audit finds what is wrong, and nothing where nothing is."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest

from signoff.ledger import DeadLetter, DeadLetters, Ledger
from signoff.ledger.audit import Audit, audit_state
from tests.ledger.attempts import attempt


class FakeLog:
    def __init__(self, head: int, first: int = 0) -> None:
        self._head, self._first = head, first

    def head(self) -> int:
        return self._head

    scan = head

    def first(self) -> int:
        return self._first

    def read(self, start: int, end: int, columns: Sequence[str]) -> list[object]:
        return []


@pytest.fixture
def filled(ledger: Ledger, letters: DeadLetters, state: Path) -> Path:
    letters.add([DeadLetter("incoming/1", "table", "bad", b"{}")])
    attempt(ledger, 0, 4, delivered=[0, 2], dead_lettered=[1])
    attempt(ledger, 4, 8, delivered=[4], owed=[6])
    return state


def look(state: Path, head: int = 10, first: int = 0) -> Audit:
    return audit_state(state, ["incoming"], lambda _: FakeLog(head, first))


def damage(state: Path, statement: str, file: str = "ledger.db") -> None:
    with sqlite3.connect(state / file) as db:
        db.execute(statement)
    db.close()


def codes(report: Audit) -> set[str]:
    return {finding.code for finding in report.findings}


def test_account_that_adds_up_is_balanced(filled: Path) -> None:
    report = look(filled)
    assert report.balanced
    assert json.dumps(report.as_dict()) == (
        '{"sources": {"incoming": {"received": 10, "delivered": 3, "dropped": 3, "dead_lettered": 1, '
        '"refused": 0, "expired": 0, "in_flight": 3}}, "buffers": {}, '
        '"balanced": true, "ignored": {"incoming": 0}, "stranded": []}'
    )


def test_state_that_does_not_exist_is_balanced_at_zero(tmp_path: Path) -> None:
    report = look(tmp_path / "none", head=0)
    assert report.balanced
    assert report.total.received == 0


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("UPDATE batches SET delivered = delivered + 1 WHERE start = 0", "batch-sum"),
        (
            "UPDATE batches SET delivered = delivered - 1, dropped = dropped + 1 WHERE start = 0",
            "batch-count",
        ),
        ("UPDATE batches SET owed_count = 0 WHERE start = 4", "owed"),
        ("DELETE FROM batches WHERE start = 0", "gap"),
        ("UPDATE sources SET next = 9", "gap"),
        ("UPDATE sources SET folded = 4", "fold"),
        ("DELETE FROM exceptions", "batch-count"),
    ],
)
def test_damage_to_the_ledger_is_found(filled: Path, statement: str, code: str) -> None:
    damage(filled, statement)
    report = look(filled)
    assert code in codes(report)
    assert not report.balanced


def test_dead_letter_that_is_gone_is_found(filled: Path) -> None:
    damage(filled, "DELETE FROM letters", "dead_letters.db")
    assert codes(look(filled)) == {"letter-missing"}


def test_log_that_is_shorter_than_the_ledger_is_found(filled: Path) -> None:
    assert "log-behind" in codes(look(filled, head=5))


def test_log_that_lost_unsettled_events_is_found(filled: Path) -> None:
    assert codes(look(filled, first=5)) == {"log-trimmed"}
    assert not codes(look(filled, first=4))


def test_source_that_left_the_pipeline_stays_in_the_account(filled: Path) -> None:
    report = audit_state(filled, ["other"], lambda _: FakeLog(10))
    assert set(report.accounts) == {"other", "incoming"}


def test_rows_of_a_buffer_that_are_in_no_batch_yet_are_part_of_the_account(filled: Path) -> None:
    (filled / "log" / "table.buffer").mkdir(parents=True)
    report = look(filled)
    assert report.balanced
    assert report.buffers["table.buffer"].in_flight == 10
    assert report.total.received == 10, "they are rows, and no events received"
