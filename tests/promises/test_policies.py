"""What happens when a sink, or the store of dead letters, does not take an event: cases 13 to 17."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.promises.product import FILES, HTTP, PARSE, SOON, Inline, books
from tests.promises.test_settling import ANSWER_S, assert_waits, code, webhook_sink
from tests.servers import PATIENCE_S, PostgresServer, WebhookServer

pytestmark = pytest.mark.spark

Make = Callable[..., Inline]


def sqlite_that_counts(path: Path) -> None:
    """A table `events` whose every write, also one that replaces a row, leaves a row in `writes`."""
    with closing(sqlite3.connect(path)) as database:
        database.executescript(
            """
            CREATE TABLE events (event_id TEXT PRIMARY KEY, n INT CHECK (n <> 3));
            CREATE TABLE writes (event_id TEXT);
            CREATE TRIGGER a AFTER INSERT ON events BEGIN INSERT INTO writes VALUES (new.event_id); END;
            CREATE TRIGGER b AFTER UPDATE ON events BEGIN INSERT INTO writes VALUES (new.event_id); END;
            """
        )


def postgres_that_counts(url: str, table: str) -> None:
    """The same in PostgreSQL, as tables of this name and of this name with `_writes`."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            f"""
            CREATE TABLE {table} (event_id text PRIMARY KEY, n int CHECK (n <> 3));
            CREATE TABLE {table}_writes (event_id text);
            CREATE FUNCTION {table}_count() RETURNS trigger LANGUAGE plpgsql AS
              $$ BEGIN INSERT INTO {table}_writes VALUES (new.event_id); RETURN new; END $$;
            CREATE TRIGGER count AFTER INSERT OR UPDATE ON {table}
              FOR EACH ROW EXECUTE FUNCTION {table}_count();
            """
        )


def column(url: str, query: str) -> list[Any]:
    with psycopg.connect(url) as connection:
        return [value for (value,) in connection.execute(query).fetchall()]


# -- cases 13 and 15


@pytest.mark.case(13)
def test_retries_happen_at_the_sink_with_backoff_and_other_sinks_see_no_second_copy(
    inline: Make, webhooks: list[WebhookServer]
) -> None:
    failing, other, _ = webhooks
    failing.answer(503, times=4)
    product = inline(
        sources={"incoming": HTTP},
        transforms={"parsed": PARSE},
        sinks={
            "first": webhook_sink(failing, "parsed", retry={"initial_ms": 50, "max_ms": 200}),
            "second": webhook_sink(other, "parsed"),
            "table": {"type": "sqlite", "input": "parsed", "path": "out.db", "table": "events"},
            "out": {"type": "files", "input": "parsed", "path": "out"},
        },
    )
    sqlite_that_counts(product.directory / "out.db")
    product.start()
    assert code(product.post({"n": 1})) == 200
    gaps = [later.at - earlier.at for earlier, later in pairwise(failing.requests)]
    assert len(gaps) == 4
    # Half of each wait is chance; it doubles, and stays at the longest.
    assert all(gap >= least for gap, least in zip(gaps, [0.025, 0.05, 0.1, 0.1], strict=True)), gaps
    assert len(other.requests) == 1
    assert product.table("writes") == [{"event_id": "incoming/0"}]
    assert [row["event_id"] for row in product.rows()] == ["incoming/0"]
    assert product.account() == books(delivered=1)


@pytest.mark.case(15)
def test_while_one_route_is_retried_for_long_the_other_sees_nothing_again(
    inline: Make, webhook: WebhookServer, postgres: PostgresServer
) -> None:
    failing = webhook.answer(503)
    postgres_that_counts(postgres.url, "other_route")
    product = inline(
        sources={"incoming": HTTP},
        transforms={"parsed": PARSE, "routed": {"type": "route", "input": "parsed",
                                               "routes": {"a": "n < 10", "b": "n > 0"}}},
        sinks={
            "a": webhook_sink(webhook, "routed.a"),
            "b": {"type": "postgres", "input": "routed.b", "url": postgres.url, "table": "other_route"},
        },
    )  # fmt: skip
    running = product.start()
    answer = product.post([{"n": 1}, {"n": 2}])
    running.wait_for(lambda: running.output.count('sink "a" failed on batch') >= 2)
    assert_waits(answer)
    assert column(postgres.url, "SELECT event_id FROM other_route ORDER BY 1") == ["incoming/0", "incoming/1"]
    failing.stop()
    assert code(answer) == 200
    writes = column(postgres.url, "SELECT event_id FROM other_route_writes ORDER BY 1")
    assert writes == ["incoming/0", "incoming/1"]
    assert sorted(webhook.accepted_ids) == ["incoming/0", "incoming/1"]
    assert product.account() == books(delivered=2)


# -- case 14

TEN = [{"n": n} for n in range(1, 11)]
ALL_BUT_THE_THIRD = [f"incoming/{n}" for n in range(10) if n != 2]


def assert_only_the_third_is_a_dead_letter(product: Inline, reason: str) -> None:
    (letter,) = product.dead_letters()
    assert (letter["event_id"], letter["stage"], letter["payload"]) == ("incoming/2", "table", '{"n": 3}')
    assert reason in letter["reason"]
    assert product.account() == books(delivered=9, dead_lettered=1)


@pytest.mark.case(14)
def test_of_a_bulk_write_to_sqlite_only_the_rejected_row_is_a_dead_letter(inline: Make) -> None:
    product = inline(
        sources={"incoming": FILES},
        transforms={"parsed": PARSE},
        sinks={"table": {"type": "sqlite", "input": "parsed", "path": "out.db", "table": "events"}},
    )
    sqlite_that_counts(product.directory / "out.db")
    product.put("a.jsonl", TEN)
    assert product.run_once().code == 0
    assert sorted(row["event_id"] for row in product.table("writes")) == ALL_BUT_THE_THIRD
    assert_only_the_third_is_a_dead_letter(product, "CHECK")


@pytest.mark.case(14)
def test_of_a_bulk_write_to_postgres_only_the_rejected_row_is_a_dead_letter(
    inline: Make, postgres: PostgresServer
) -> None:
    postgres_that_counts(postgres.url, "checked")
    table = {"type": "postgres", "input": "parsed", "url": postgres.url, "table": "checked"}
    product = inline(sources={"incoming": FILES}, transforms={"parsed": PARSE}, sinks={"table": table})
    product.put("a.jsonl", TEN)
    assert product.run_once().code == 0
    assert column(postgres.url, "SELECT event_id FROM checked_writes ORDER BY 1") == ALL_BUT_THE_THIRD
    assert_only_the_third_is_a_dead_letter(product, "check constraint")


@pytest.mark.case(14)
def test_of_a_bulk_request_only_the_rejected_row_is_a_dead_letter(
    inline: Make, webhook: WebhookServer
) -> None:
    webhook.answer_rows(422, {"incoming/2"}, body="three is not a number")
    sink = webhook_sink(webhook, mode="array")
    product = inline(sources={"incoming": FILES}, sinks={"table": sink})
    product.put("a.jsonl", TEN)
    assert product.run_once().code == 0
    assert sorted(webhook.accepted_ids) == ALL_BUT_THE_THIRD
    assert_only_the_third_is_a_dead_letter(product, "three is not a number")


@pytest.mark.case(14)
def test_of_ten_rows_only_the_one_that_failed_is_sent_again(inline: Make, webhook: WebhookServer) -> None:
    failing = webhook.answer_rows(503, {"incoming/2"})
    product = inline(sources={"incoming": FILES}, sinks={"first": webhook_sink(webhook)})
    product.put("a.jsonl", TEN)
    running = product.start("--once", engine_when=lambda: product.received() == 10, patience_s=PATIENCE_S)
    running.wait_for(lambda: running.output.count('sink "first" failed on batch') >= 2)
    assert product.account() == books(delivered=9, in_flight=1)
    failing.stop()
    assert running.wait().code == 0
    times = {event_id: 0 for request in webhook.requests for event_id in request.ids}
    for request in webhook.requests:
        times[request.ids[0]] += 1
    assert times.pop("incoming/2") > 2
    assert set(times.values()) == {1}
    assert product.account() == books(delivered=10)


# -- case 16


@pytest.mark.case(16)
@pytest.mark.parametrize(
    ("policy", "status", "counted"),
    [("dead_letter", 200, "dead_lettered"), ("refuse", 503, "refused"), ("drop", 200, "dropped")],
)
def test_when_retries_are_exhausted_the_configured_policy_applies(
    inline: Make, webhook: WebhookServer, policy: str, status: int, counted: str
) -> None:
    webhook.answer(503, lambda request: request.rows[0]["payload"] == '{"n": 2}', body="try later")
    sink = webhook_sink(webhook, retry={**SOON, "attempts": 3}, on_failure=policy)
    product = inline(sources={"incoming": HTTP}, sinks={"first": sink})
    running = product.start()
    response = product.post([{"n": 1}, {"n": 2}]).result(ANSWER_S)
    assert response.status_code == status
    assert webhook.accepted_ids == ["incoming/0"]
    assert sum(request.ids == ["incoming/1"] for request in webhook.requests) == 3
    assert product.account() == books(delivered=1, **{counted: 1})
    if policy == "drop":
        running.wait_for(lambda: "row dropped at" in running.output)
    reasons = {
        "dead_letter": [letter["reason"] for letter in product.dead_letters()],
        "refuse": [one["reason"] for one in response.json().get("refused", [])],
        "drop": [line for line in running.output.splitlines() if "row dropped at" in line],
    }
    for where, found in reasons.items():
        assert len(found) == (1 if where == policy else 0), reasons
    assert "gave up after 3 attempts" in reasons[policy][0]
    assert "try later" in reasons[policy][0]


@pytest.mark.case(16)
def test_a_sink_that_never_comes_back_is_given_up_on_row_by_row_not_untried(
    inline: Make, webhook: WebhookServer
) -> None:
    """The rows of two inputs reach a sink one after the other; the second ones get their tries, too."""
    webhook.answer_rows(503, {"incoming/0/high"})
    product = inline(
        sources={"incoming": HTTP},
        transforms={
            "parsed": PARSE,
            "high": {"type": "filter", "input": "parsed", "where": "n >= 5"},
            "low": {"type": "filter", "input": "parsed", "where": "n <= 5"},
        },
        sinks={"both": webhook_sink(webhook, None, inputs=["high", "low"], retry={**SOON, "attempts": 2})},
    )
    product.start()
    assert code(product.post({"n": 5})) == 200
    assert webhook.accepted_ids == ["incoming/0/low"]
    assert [letter["event_id"] for letter in product.dead_letters()] == ["incoming/0/high"]
    assert product.account() == books(dead_lettered=1)


@pytest.mark.case(16, 40)
def test_unfolded_rows_of_a_file_that_cannot_be_made_visible_are_dead_letters_that_can_be_replayed(
    inline: Make,
) -> None:
    product = inline(
        sources={"incoming": HTTP},
        transforms={"parsed": PARSE, "parts": {"type": "unfold", "input": "parsed", "column": "parts"}},
        sinks={"out": {"type": "files", "input": "parts", "path": "out", "retry": {**SOON, "attempts": 2}}},
    )
    in_the_way = product.directory / "out" / "incoming-000000000000-000000000001.jsonl" / "x"
    in_the_way.mkdir(parents=True)
    product.start()
    assert code(product.post({"parts": [10, 20]})) == 200
    assert product.account() == books(dead_lettered=1)
    assert {letter["stage"] for letter in product.dead_letters()} == {"out"}
    in_the_way.rmdir()
    in_the_way.parent.rmdir()
    assert product.command("dead-letters", "replay", str(product.file), "--all").code == 0
    rows = [(row["event_id"], row["parts"]) for row in product.rows()]
    assert rows == [("incoming/0/0", 10), ("incoming/0/1", 20)]
    assert product.account() == books(delivered=1)
    assert product.dead_letters() == []


# -- case 19


@pytest.mark.case(19)
@pytest.mark.parametrize("on_refusal", ["fail_fast", "wait"])
def test_a_refusal_reaches_the_source_at_once_or_after_the_last_route_as_configured(
    inline: Make, webhooks: list[WebhookServer], on_refusal: str
) -> None:
    first, second, _ = webhooks
    first.answer_rows(422, {"incoming/0"}, body="not wanted")
    failing = second.answer(503)
    product = inline(
        sources={"incoming": {**HTTP, "on_refusal": on_refusal}},
        sinks={"first": webhook_sink(first, on_failure="refuse"), "second": webhook_sink(second)},
    )
    running = product.start()
    refused, fine = product.post({"n": 0}), None
    running.wait_for(lambda: 'sink "second" failed on batch' in running.output)
    if on_refusal == "wait":
        assert_waits(refused)
        failing.stop()
    assert code(refused) == 422
    failing.stop()
    fine = product.post({"n": 1})
    assert code(fine) == 200
    assert product.account() == books(delivered=1, refused=1)
    taken = ["incoming/1"] if on_refusal == "fail_fast" else ["incoming/0", "incoming/1"]
    assert second.accepted_ids == taken, "what is refused is asked of nobody again"


# -- case 17


@pytest.mark.case(17)
def test_source_is_not_acknowledged_while_the_dead_letter_cannot_be_stored(
    inline: Make, webhook: WebhookServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("signoff.ledger.store.BUSY_SECONDS", 0.2)
    product = inline(
        sources={"incoming": HTTP},
        transforms={"parsed": PARSE},
        sinks={"first": webhook_sink(webhook, "parsed")},
    )
    running = product.start()
    assert code(product.post({"n": 1})) == 200
    with closing(sqlite3.connect(product.state / "dead_letters.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        answer = product.post(b"not json", headers={"content-type": "text/plain"})
        running.wait_for(lambda: "cannot store dead letters" in running.output)
        assert_waits(answer)
        assert product.account() == books(delivered=1, in_flight=1)
        assert product.explain("incoming/1")["acknowledged"] is False
        other.execute("ROLLBACK")
    assert code(answer) == 200
    assert [letter["payload"] for letter in product.dead_letters()] == ["not json"]
    assert product.account() == books(delivered=1, dead_lettered=1)


@pytest.mark.case(25)
def test_rows_are_filed_by_day_in_csv_files_and_a_row_without_a_day_is_one_dead_letter(inline):
    product = inline(
        sources={"incoming": {"type": "files", "path": "in/*.jsonl", "on_acknowledge": "move"}},
        transforms={"rows": {"type": "parse_json", "input": "incoming", "schema": "n BIGINT, at STRING"}},
        sinks={
            "out": {
                "type": "files",
                "input": "rows",
                "path": "out",
                "format": "csv",
                "partition_by": {"day": "to_date(at)", "even": "n % 2 = 0"},
                "max_file_rows": 2,
            }
        },
    )
    days = [f"2021-05-0{n % 2 + 1} 10:00:00" for n in range(8)]
    product.put(
        "1.jsonl", [*({"n": n, "at": at} for n, at in enumerate(days)), {"n": 8}, {"n": 9, "at": "soon"}]
    )
    assert product.run_once().code == 0
    assert product.account()["dead_lettered"] == 1 and product.balanced
    found = {}
    for file in sorted((product.directory / "out").glob("*/*/*.csv")):
        head, *lines = file.read_text().splitlines()
        assert head == "event_id,n,at" and len(lines) <= 2
        found.setdefault(f"{file.parent.parent.name}/{file.parent.name}", []).extend(
            int(line.split(",")[1]) for line in lines
        )
    assert found == {
        "day=2021-05-01/even=true": [0, 2, 4, 6],
        "day=2021-05-02/even=false": [1, 3, 5, 7],
        "day=__HIVE_DEFAULT_PARTITION__/even=true": [8],
    }
