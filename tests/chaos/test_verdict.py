"""The chaos run must notice: each way to lose, double or misplace a message is a finding that names it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from tests.chaos import messages
from tests.chaos.faults import KILLS, OTHERS, plan
from tests.chaos.verdict import Evidence, Finding, Row, judge

MALFORMED = 500
PERHAPS = {7, 8}


def row(number: int, sequence: int | None = None) -> Row:
    event = f"incoming/{number if sequence is None else sequence}"
    return event, messages.message_id(number), number, messages.text(number)


def letter(number: int) -> dict[str, Any]:
    payload = messages.payload(number)
    return {"event_id": f"incoming/{number}", "stage": "parsed", "reason": "bad", "payload": payload}


def account(**counts: int) -> dict[str, Any]:
    names = ("received", "delivered", "dropped", "dead_lettered", "refused", "expired", "in_flight")
    return {"sources": {"incoming": dict.fromkeys(names, 0) | counts}, "balanced": True}


ROWS = [row(0), row(1), row(7)]
FINE = Evidence(
    confirmed={0, 1, MALFORMED},
    perhaps=PERHAPS,
    tables={"SQLite": ROWS, "PostgreSQL": ROWS},
    letters=[letter(MALFORMED)],
    queues={"quorum": 0},
    audit=account(received=4, delivered=3, dead_lettered=1),
    audit_code=0,
    log_head=4,
)


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    assert judge(FINE) == []


def with_rows(*rows: Row) -> Evidence:
    """Both tables hold these, and the account agrees: the books alone would not tell."""
    numbers = {"received": len(rows) + 1, "delivered": len({r[1] for r in rows}), "dead_lettered": 1}
    return replace(
        FINE, tables={"SQLite": rows, "PostgreSQL": rows}, audit=account(**numbers), log_head=len(rows) + 1
    )


@pytest.mark.parametrize(
    ("evidence", "found"),
    [
        (with_rows(row(0), row(7)), "lost, not in SQLite: m1"),
        (with_rows(row(0), row(1), row(1, 9)), "more than once in PostgreSQL: m1"),
        (with_rows(row(0), row(1), row(7), row(7, 9)), "more than once in SQLite: m7"),
        (with_rows(row(0), row(1), row(3)), "never published, but in SQLite: m3"),
        (with_rows(row(0), row(1), row(MALFORMED)), "never published, but in SQLite: m500"),
        (
            with_rows(row(0), ("incoming/1", "m1", 1, "other")),
            "not as published in SQLite: incoming/1 (m1: 1, 'other')",
        ),
        (
            replace(FINE, tables={"SQLite": ROWS, "PostgreSQL": ROWS[:2]}),
            "not the same event in SQLite and PostgreSQL: m7 (incoming/7, None)",
        ),
        (replace(FINE, letters=[]), "lost, not among the dead letters: m500"),
        (replace(FINE, letters=[letter(MALFORMED)] * 2), "more than once among the dead letters: m500"),
        (
            replace(FINE, letters=[letter(MALFORMED), letter(1)]),
            "dead letters of messages that are not malformed: incoming/1 at parsed (bad)",
        ),
        (replace(FINE, queues={"quorum": 2}), "2 messages are left in queue quorum"),
    ],
)
def test_it_names_what_is_wrong(evidence: Evidence, found: str) -> None:
    assert found in map(str, judge(evidence))


def test_an_account_that_does_not_say_what_is_there_is_found() -> None:
    audit = account(received=4, delivered=2, dead_lettered=1, in_flight=1)
    assert "the account is" in str(judge(replace(FINE, audit=audit))[0])
    assert "does not balance" in str(judge(replace(FINE, audit_code=1))[0])


def test_many_messages_are_named_by_the_first_ten() -> None:
    assert str(Finding("lost", tuple(f"m{n}" for n in range(12)))).endswith("m9 and 2 more")


def test_the_plan_depends_on_the_seed_alone() -> None:
    assert plan(20, 3, 8.0) == plan(20, 3, 8.0)
    assert plan(20, 3, 8.0) != plan(20, 4, 8.0)


@pytest.mark.parametrize("kills", [0, 1, 7, 50])
def test_a_plan_has_as_many_kills_as_asked_for_and_cuts_besides(kills: int) -> None:
    counts = Counter(fault.kind for fault in plan(kills, 1, 8.0))
    assert sum(counts[kind] for kind in KILLS) == kills
    assert {counts[kind] for kind in OTHERS} == {-(-kills // len(KILLS))}
