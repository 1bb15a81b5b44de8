"""What the pages show and do, on a state directory that the ledger's own API has made, without a server."""

from __future__ import annotations

import html
import re
from contextlib import nullcontext

import pytest

from signoff.ledger import DeadLetter, DeadLetters, Ledger, RunLock
from signoff.operate.account import read_account
from signoff.page.watched import WatchedPipeline
from signoff.pipeline.secrets import register_secret
from tests.page.client import Client

AT = "/pipelines/alarms"


def text_of(client: Client, path: str) -> str:
    answer = client.get(AT + path)
    assert answer.status_code == 200, answer.text
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", answer.text)).split())


def stored(pipeline: WatchedPipeline, event_id: str) -> DeadLetter:
    with DeadLetters(pipeline.graph.state / "dead_letters.db") as letters:
        return letters.get(event_id)[0]


def test_one_pipeline_is_shown_at_once_and_all_are_listed_when_asked_for(client: Client) -> None:
    assert client.get("/").headers["location"] == f"{AT}/"
    assert "alarms" in client.get("/?all").text


def test_graph_names_every_node_with_its_state(client: Client) -> None:
    page = client.get(f"{AT}/").text
    for title in (
        "source incoming, files: not running, 3 in flight",
        "transform failures, filter",
        "sink table, sqlite: failing, 1 wait, database is locked",
        "sink desk, http: 0 rows",
    ):
        assert f'aria-label="{title}"' in page
    assert "sink &#34;table&#34; fails: database is locked" in page


@pytest.mark.parametrize("alive", [False, True])
def test_a_sink_that_owes_what_it_has_not_failed_on_is_not_shown_as_well(
    client: Client, pipeline: WatchedPipeline, alive: bool
) -> None:
    """A run was killed during the first pass over a batch."""
    with Ledger(pipeline.graph.state / "ledger.db") as ledger:
        ledger.open_batch("incoming", 8, 10, ["desk", "table"])
    with RunLock(pipeline.graph.state) if alive else nullcontext():
        pipeline.sample()
        assert 'aria-label="sink desk, http: 0 rows, 2 wait"' in client.get(f"{AT}/").text
        assert "Events not delivered yet 2 Rows taken 0" in text_of(client, "/now?node=desk")


def test_node_shows_configuration_without_secrets_and_what_is_wrong(client: Client) -> None:
    assert "hunter" not in client.get(f"{AT}/?node=desk").text
    assert "https://desk:***@example.com/?token=***" in text_of(client, "/?node=desk")
    assert "Events not delivered yet 1 Rows taken 1" in text_of(client, "/now?node=table")
    assert client.get(f"{AT}/?node=nobody").status_code == 404


def test_account_adds_up_as_an_equation(client: Client) -> None:
    assert (
        "10 received = 4 delivered + 1 dropped + 1 dead-lettered + 1 refused + 0 expired + 3 in-flight"
        in text_of(client, "/account/now?span=day")
    )


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("incoming/6", "tried 3 times: database is locked"),
        ("m-9", "incoming/9"),
        ("m-1", "Dead letter at table"),
        ("m-77", "No event in flight and no dead letter has this id"),
        ("incoming/77", "unknown"),
    ],
)
def test_an_event_is_found_by_its_id_or_that_of_its_message(client: Client, asked: str, said: str) -> None:
    assert said in text_of(client, f"/find?event={asked}")


def test_letters_are_grouped_and_found_by_stage_reason_and_payload(client: Client) -> None:
    assert "1 table no such column" in text_of(client, "/letters")
    for query in ("stage=table", "reason=COLUMN", "text=%22n%22"):
        assert "incoming/1" in text_of(client, f"/letters?{query}")
    assert "No letter is like that" in text_of(client, "/letters?text=elsewhere")


def test_what_others_have_sent_is_escaped_and_its_control_characters_and_secrets_are_not_shown(
    client: Client, pipeline: WatchedPipeline
) -> None:
    register_secret("opensesame-1")
    stage = "</pre><script>alert(1)</script>"
    evil = f"{stage}\x1b[2J opensesame-1"
    with DeadLetters(pipeline.graph.state / "dead_letters.db") as letters:
        letters.add([DeadLetter("incoming/3", stage, evil, evil.encode(), {evil: evil}, message_id=evil)])
    pipeline.sample()
    for path in (
        "/letters", "/letters/one?event=incoming/3", "/find?event=incoming/3", "/letters?reason=%3Cscript",
        "/letters/confirm?action=drop&event=incoming/3", "/find?event=%3Cscript%3Ealert(1)",
        "/letters?stage=%1b%3Cscript%3E",
    ):  # fmt: skip
        page = client.get(AT + path).text
        assert "<script>alert" not in page and "\x1b" not in page and "opensesame" not in page, path
    assert "\\u001b[2J ***" in client.get(f"{AT}/letters/one?event=incoming/3").text


def test_replay_is_left_to_the_run_and_followed_to_its_end(client: Client, pipeline: WatchedPipeline) -> None:
    with RunLock(pipeline.graph.state):
        page = f"{AT}/letters/confirm?action=replay&stage=table"
        assert "Replay 1 dead letter?" in text_of(client, "/letters/confirm?action=replay&stage=table")
        until = re.findall(r'name="until" value="([^"]+)"', client.get(page).text)
        answer = client.send(page, f"{AT}/letters/replay", {"stage": "table", "until": until})
        assert answer.status_code == 303
        follow = answer.headers["location"].removeprefix(AT)
        assert "0 of 1 done" in text_of(client, follow)
        assert stored(pipeline, "incoming/1").status == "replaying"
    with DeadLetters(pipeline.graph.state / "dead_letters.db") as letters:
        letters.withdraw([stored(pipeline, "incoming/1")])
    assert "All 1 done" in text_of(client, f"{follow}/now")
    assert "failed-again no such column" in text_of(client, f"{follow}/now")


def test_letters_that_come_after_the_question_are_not_dropped_by_the_answer(
    client: Client, pipeline: WatchedPipeline
) -> None:
    page = f"{AT}/letters/confirm?action=drop&stage=table"
    until = re.findall(r'name="until" value="([^"]+)"', client.get(page).text)
    with DeadLetters(pipeline.graph.state / "dead_letters.db") as letters:
        letters.add([DeadLetter("incoming/5", "table", "came later", b"{}")])
    answer = client.send(page, f"{AT}/letters/drop", {"stage": "table", "until": until})
    assert "1 of 1 dropped" in answer.text
    assert (stored(pipeline, "incoming/1").status, stored(pipeline, "incoming/5").status) == (
        "dropped",
        "stored",
    )


def test_corrected_copy_takes_the_place_of_the_letter_byte_by_byte(
    client: Client, pipeline: WatchedPipeline
) -> None:
    page = f"{AT}/letters/one?event=incoming/1"
    fields = {"event": "incoming/1", "stage": "table", "payload": '{\r\n"n": 11}'}
    answer = client.send(page, f"{AT}/letters/resubmit", fields)
    assert answer.status_code == 303
    assert stored(pipeline, "incoming/1/+1").payload == b'{\n"n": 11}'
    assert stored(pipeline, "incoming/1/+1").status == "replaying"
    assert read_account(pipeline.graph).audit.balanced


@pytest.mark.parametrize("payload", ['{"n": 1}', " \r\n"])
def test_a_copy_that_was_not_changed_or_is_empty_is_not_sent(
    client: Client, pipeline: WatchedPipeline, payload: str
) -> None:
    page = f"{AT}/letters/one?event=incoming/1"
    fields = {"event": "incoming/1", "stage": "table", "payload": payload}
    answer = client.send(page, f"{AT}/letters/resubmit", fields)
    assert answer.status_code == 422 and 'role="alert"' in answer.text
    assert stored(pipeline, "incoming/1").status == "stored"


@pytest.mark.parametrize("payload", [b"\xff", b'{"a": "\x00"}', b"a\rb", b"a\r\nb\nc", b"password=hunter2"])
def test_a_payload_that_a_browser_would_change_or_that_is_masked_is_not_edited(
    client: Client, pipeline: WatchedPipeline, payload: bytes
) -> None:
    with DeadLetters(pipeline.graph.state / "dead_letters.db") as letters:
        letters.add([DeadLetter("incoming/5", "table", "no", payload)])
    page = client.get(f"{AT}/letters/one?event=incoming/5").text
    assert "<textarea" not in page and "hunter2" not in page
    fields = {"event": "incoming/5", "stage": "table", "payload": "x"}
    answer = client.send(f"{AT}/letters/one?event=incoming/5", f"{AT}/letters/resubmit", fields)
    assert answer.status_code == 422
    assert stored(pipeline, "incoming/5").payload == payload


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/nowhere", 404), ("/letters?stage=%ff", 400), ("/letters/one?event=nonsense", 422),
        ("/letters/one?event=incoming/2", 422), ("/letters/confirm?action=eat", 422), ("/replays/none", 404),
        ("/letters/confirm?action=drop&event=elsewhere/1", 422), ("/reports/desk/html", 404),
        ("/letters?page=-1&closed=1", 200), ("/letters?page=%C2%B2", 200), (f"/letters?page={'9' * 20}", 200),
        ("/letters?" + "a=b&" * 3000, 400), ("/find?event=%00", 200),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_said_on_a_page(client: Client, path: str, code: int) -> None:
    answer = client.get(AT + path)
    assert answer.status_code == code, answer.text
    assert code == 200 or "text/html" in answer.headers["content-type"] or code == 404
