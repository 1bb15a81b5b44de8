"""What commands, the page and the service ask of a pipeline: the same answers, without printing anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from signoff.cli import app
from signoff.errors import RequestError
from signoff.ledger import DeadLetters, RunLock
from signoff.operate.account import read_account
from signoff.operate.buffers import drop_buffer, list_buffers
from signoff.operate.corrections import correct, resubmit_all
from signoff.operate.event_story import read_story
from signoff.operate.graph_view import view_graph
from signoff.operate.letter_choice import Choice, choice
from signoff.operate.letters import drop_chosen, each_letter, find_letters, group_letters
from signoff.operate.replay import letters_to_replay, read_replay, request_replay
from signoff.pipeline.graph import Graph
from signoff.watch.status import read_status
from tests.operate.state import fill


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    return fill(tmp_path)


def printed(graph: Graph, *words: str) -> Any:
    command, *rest = words
    names = [rest.pop(0)] if command in ("dead-letters", "buffers") else []
    done = CliRunner().invoke(app, [command, *names, graph.file, *rest, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_answers_are_what_the_commands_print(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("signoff.watch.status.time.time", lambda: 2e9)
    assert printed(graph, "status") == json.loads(json.dumps(read_status(graph)))
    assert printed(graph, "audit") == read_account(graph).to_json()
    assert printed(graph, "explain", "incoming/6") == read_story(graph, "incoming/6").to_json()
    assert printed(graph, "buffers", "list") == {name: x.as_dict() for name, x in list_buffers(graph).items()}
    (letter,) = each_letter(graph, Choice())
    assert printed(graph, "dead-letters", "list") == letter.to_json()
    assert find_letters(graph, choice(stage="table")) == [letter]
    assert [group.to_json() for group in group_letters(graph)] == [
        {"stage": "table", "reason": "no such column", "letters": 1}
    ]


def test_a_replay_is_left_to_the_run_and_says_how_far_it_is(graph: Graph) -> None:
    with RunLock(graph.state):
        replay = request_replay(graph, choice(["incoming/1"]))
        assert read_replay(graph, replay).counts["waiting"] == 1
    with DeadLetters(graph.state / "dead_letters.db") as letters:
        assert (replay.left(letters), letters.get("incoming/1")[0].status) == (1, "replaying")
    assert drop_chosen(graph, choice(["incoming/1"])).to_json() == {"asked": 1, "dropped": 1}
    counts = read_replay(graph, replay).counts
    assert (counts["waiting"], counts["dropped"]) == (0, 1)


def test_a_corrected_event_takes_the_place_of_a_letter(graph: Graph) -> None:
    with letters_to_replay(graph) as letters:
        correction = correct(graph, letters, "incoming/1", None, b'{"n": 11}')
        (new,) = resubmit_all(graph, letters, [correction]).new
        assert (new.event_id, new.payload) == ("incoming/1/+1", b'{"n": 11}')
        with pytest.raises(RequestError, match=r"open is incoming/1/\+1"):
            correct(graph, letters, "incoming/1", None, b"{}")
        with pytest.raises(RequestError, match="payload is empty") as error:
            correct(graph, letters, "incoming/1/+1", None, b" ")
    assert error.value.field == "payload"
    assert read_account(graph).audit.balanced


@pytest.mark.parametrize(
    ("ask", "field"),
    [
        (lambda _: choice(stage=" "), "stage"),
        (lambda _: choice(matching="("), "matching"),
        (lambda _: choice(since="yesterday"), "since"),
        (lambda graph: find_letters(graph, choice(["nonsense"])), "event_id"),
        (lambda graph: find_letters(graph, choice(["incoming/0"])), "event_id"),
        (lambda graph: read_story(graph, "nonsense"), "event_id"),
        (lambda graph: drop_buffer(graph, "none"), "buffer"),
    ],
)
def test_what_cannot_be_meant_names_its_field(graph: Graph, ask: Any, field: str) -> None:
    with pytest.raises(RequestError) as error:
        ask(graph)
    assert error.value.field == field


def test_the_graph_is_shown_without_secrets(graph: Graph) -> None:
    view = view_graph(graph)
    assert [(edge.source, edge.target) for edge in view.edges] == [
        ("incoming", "failures"), ("failures", "table"), ("incoming", "desk"),
    ]  # fmt: skip
    desk = next(node for node in view.nodes if node.name == "desk")
    assert (desk.kind, desk.type, desk.written) == ("sink", "http", ("input", "type", "url"))
    assert "***" in desk.config["url"] and "hunter" not in json.dumps(view.to_json())
