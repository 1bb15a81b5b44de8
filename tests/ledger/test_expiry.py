"""Expiry in the ledger: what was owed and by whom is part of the reason; what comes later is ignored."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyroaring import BitMap64
from typer.testing import CliRunner

from signoff.cli import app
from signoff.ledger import Ledger, RowRef
from signoff.ledger.batch_state import Done, HandedOn, OwesAll, OwesRows, Untried
from signoff.ledger.batches import HandedOnOutcome
from signoff.log import LogWriter
from signoff.log.event_schema import EVENT_SCHEMA
from signoff.pipeline.model import LogSettings
from tests.ledger.attempts import attempt

PIPELINE = """
name: alarms
sources:
  incoming: {type: files, path: "./in/*.jsonl", acknowledge_within: 30s}
sinks:
  table: {type: sqlite, input: incoming, path: ./out.db, table: alarms}
"""
LOCKED = OwesAll(attempts=3, error="database is locked", since=900.0)


@pytest.fixture
def file(tmp_path: Path, state: Path) -> Path:
    """A pipeline with four events in its log."""
    log = LogWriter(state / "log" / "incoming", LogSettings())
    rows = [{"payload": b"{}", "received_at": datetime(2026, 1, 1, tzinfo=UTC)}] * 4
    log.append(pa.RecordBatch.from_pylist(rows, schema=EVENT_SCHEMA))
    log.sync()
    log.close()
    path = tmp_path / "alarms.yaml"
    path.write_text(PIPELINE)
    return path


def run(*arguments: object) -> str:
    return CliRunner().invoke(app, [str(argument) for argument in arguments]).output


def test_the_reason_says_which_sinks_owed_the_event(ledger: Ledger) -> None:
    ledger.open_batch("incoming", 0, 5, ["archive", "table", "webhook"])
    states = {
        "archive": Done(),
        "table": OwesRows((RowRef(1), RowRef(2, "0")), attempts=3, error="locked"),
        "webhook": Untried((RowRef(2), RowRef(3))),
    }
    attempt(ledger, 0, 5, delivered=range(5), owed=[1, 2, 3], sinks=states)
    assert ledger.expire("incoming", dict.fromkeys(range(7), "late")) == {
        1: "late; owed by table (tried 3 times: locked)",
        2: "late; owed by table (tried 3 times: locked), webhook (no answer yet)",
        3: "late; owed by webhook (no answer yet)",
        5: "late; no batch had taken it from the log then",
        6: "late; no batch had taken it from the log then",
    }
    assert ledger.account("incoming", 7).as_dict() == {
        "received": 7, "delivered": 2, "dropped": 0, "dead_lettered": 0, "refused": 0, "expired": 5,
        "in_flight": 0,
    }  # fmt: skip


def test_a_sink_of_which_nothing_is_known_yet_owes_all(ledger: Ledger) -> None:
    ledger.open_batch("incoming", 0, 2, ["table"])
    assert ledger.expire("incoming", {0: "late"}) == {0: "late; owed by table (no answer yet)"}
    assert set(ledger.open_batch("incoming", 0, 2, ["table"]).owed) == {1}


def test_a_sink_that_has_handed_the_event_on_still_owes_it(ledger: Ledger) -> None:
    ledger.open_batch("incoming", 0, 2, ["next"])
    handed = HandedOn(BitMap64([1]))
    attempt(ledger, 0, 2, delivered=[0], owed=[1], sinks={"next": handed, "table": Done()})
    assert ledger.expire("incoming", {1: "late"}) == {
        1: "late; owed by next (handed on, not settled there yet)"
    }
    ledger.release("incoming", 0, 2, "next", HandedOnOutcome(BitMap64([1]), BitMap64(), BitMap64([1])))
    assert ledger.account("incoming", 2).as_dict()["expired"] == 1


def test_at_most_ten_sinks_are_named_and_long_errors_are_cut(ledger: Ledger) -> None:
    names = [*(f"sink{number:02d}" for number in range(12)), "table"]
    ledger.open_batch("incoming", 0, 1, names)
    owing = OwesAll(attempts=1, error="x" * 5000)
    attempt(ledger, 0, 1, owed=[0], sinks=dict.fromkeys(names, owing))
    reason = ledger.expire("incoming", {0: "late"})[0]
    assert [name for name in names if name in reason] == names[:10]
    assert reason.endswith(" and 3 more")
    assert len(reason) < 3000


def test_explain_says_what_was_owed_when_the_event_expired(ledger: Ledger, file: Path) -> None:
    attempt(ledger, 0, 2, delivered=[1], owed=[0], sinks={"table": LOCKED})
    ledger.expire("incoming", {0: "not settled within 30 s (acknowledge_within)"})
    told = json.loads(run("explain", file, "incoming/0", "--json"))
    assert (told["state"], told["acknowledged"]) == ("expired", False)
    assert told["why"] == (
        "the source stopped waiting: not settled within 30 s (acknowledge_within); "
        "owed by table (tried 3 times: database is locked)"
    )
    assert "owed" not in [stage["state"] for stage in told["stages"]], "nobody owes it any more"


def test_late_outcomes_are_ignored_counted_and_shown(ledger: Ledger, file: Path) -> None:
    attempt(ledger, 0, 2, owed=[0, 1], sinks={"table": LOCKED})
    ledger.expire("incoming", {0: "late", 3: "late"})
    attempt(ledger, 0, 2, delivered=[0, 1])
    attempt(ledger, 2, 4, delivered=[2, 3])
    audit = json.loads(run("audit", file, "--json"))
    assert audit["balanced"] is True
    assert audit["ignored"] == {"incoming": 2}
    account = audit["sources"]["incoming"]
    assert (account["delivered"], account["expired"], account["in_flight"]) == (2, 2, 0)
    assert json.loads(run("status", file, "--json"))["sources"]["incoming"]["ignored"] == 2
    said = "incoming: 2 outcomes came for events settled already, and were ignored"
    assert said in run("audit", file)
    assert said in run("status", file)


def test_a_single_late_outcome_is_said_as_one(ledger: Ledger, file: Path) -> None:
    attempt(ledger, 0, 2, owed=[0, 1], sinks={"table": LOCKED})
    ledger.expire("incoming", {0: "late"})
    attempt(ledger, 0, 2, delivered=[0, 1])
    said = "incoming: 1 outcome came for an event settled already, and was ignored"
    assert said in run("audit", file)
    assert said in run("status", file)


def test_many_expire_at_once_in_a_ledger_of_many_open_batches(ledger: Ledger) -> None:
    for start in range(0, 20_000, 1000):
        attempt(ledger, start, start + 1000, owed=range(start, start + 1000), sinks={"table": LOCKED})
    expired = ledger.expire("incoming", dict.fromkeys(range(5_500, 30_000), "late"))
    assert len(expired) == 24_500
    assert ledger.account("incoming", 30_000).expired == 24_500
    assert ledger.needed_from("incoming") == 0
    assert ledger.expire("incoming", dict.fromkeys(range(5_500, 30_000), "again")) == {}
