"""A corrected event in the place of a dead letter; and which letters are meant."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from signoff.cli import app
from signoff.errors import StateError
from signoff.ledger import DeadLetter, DeadLetters, Ledger, Outcome, Resolution
from signoff.ledger.dead_letters import close_letters
from signoff.ledger.letter_filter import LetterFilter
from signoff.ledger.resubmission import resubmit, why_not
from signoff.log import LogReader
from tests.ledger.attempts import attempt
from tests.ledger.test_commands import PIPELINE


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "alarms.yaml"
    path.write_text(PIPELINE)
    return path


@pytest.fixture
def dead(ledger: Ledger, letters: DeadLetters) -> Ledger:
    """Six events, 1 and 3 of which are dead letters of `table`."""
    letters.add([_letter(1, "no such column"), _letter(3, "Value 7 is too large", at=2000.0)])
    attempt(ledger, 0, 6, delivered=[0, 2, 4, 5], dead_lettered=[1, 3])
    return ledger


def _letter(number: int, reason: str, at: float = 1000.0, **fields: Any) -> DeadLetter:
    return DeadLetter(
        f"incoming/{number}", "table", reason, b'{"n": %d}' % number, {"file": "a"}, at=at, **fields
    )


def run(*arguments: object, **options: Any) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], **options)


def counts(ledger: Ledger) -> tuple[int, int, int]:
    account = ledger.books("incoming").account(6)
    assert account.balanced
    return account.delivered, account.dropped, account.dead_lettered


def test_a_corrected_event_names_the_old_one_and_takes_its_place_in_the_account(
    dead: Ledger, letters: DeadLetters
) -> None:
    (old,) = letters.get("incoming/1")
    new = resubmit(dead, letters, old, b'{"n": 10}')
    assert (new.event_id, new.payload, new.status) == ("incoming/1/+1", b'{"n": 10}', "stored")
    assert new.headers == {"file": "a", "signoff-resubmits": "incoming/1"}
    (old,) = letters.get("incoming/1")
    assert (old.status, old.result, old.payload) == (
        "replayed",
        "resubmitted as incoming/1/+1",
        b'{"n": 1}',
    )
    assert counts(dead) == (4, 0, 2), "the event is still dead-lettered: the new letter stands for it"
    again = resubmit(dead, letters, new, b'{"n": 100}')
    assert again.event_id == "incoming/1/+2" and again.headers["signoff-resubmits"] == "incoming/1/+1"
    letters.request_replay([again])
    close_letters(dead, letters, [Resolution(*again.key, Outcome.DELIVERED, "delivered")])
    assert counts(dead) == (5, 0, 1)
    assert [letter.event_id for letter in letters.list()] == ["incoming/3"]


@pytest.mark.parametrize("kill", ["ledger", "closing"])
def test_killed_in_between_the_event_has_a_letter_and_the_same_command_goes_on(
    dead: Ledger, letters: DeadLetters, state: Path, monkeypatch: pytest.MonkeyPatch, kill: str
) -> None:
    class Killed(BaseException):
        pass

    def die(*_: object, **__: object) -> None:
        raise Killed

    (old,) = letters.get("incoming/1")
    with monkeypatch.context() as patched:
        target, name = (Ledger, "resolve") if kill == "ledger" else (DeadLetters, "resolve_all")
        patched.setattr(target, name, die)
        with pytest.raises(Killed):
            resubmit(dead, letters, old, b"wrong again")
    assert counts(dead) == (4, 0, 2)
    (old,) = letters.get("incoming/1")
    new = resubmit(dead, letters, old, b'{"n": 10}')
    assert counts(dead) == (4, 0, 2)
    assert {x.event_id for x in letters.list()} >= {new.event_id, "incoming/3"}
    letters.request_replay(letters.list())
    ends = [Resolution(*x.key, Outcome.DELIVERED, "delivered") for x in letters.replays_requested()]
    close_letters(dead, letters, ends)
    assert counts(dead) == (6, 0, 0)


def test_what_is_being_replayed_or_was_made_of_several_events_is_not_resubmitted(
    dead: Ledger, letters: DeadLetters
) -> None:
    (old,) = letters.get("incoming/1")
    letters.request_replay([old])
    with pytest.raises(StateError, match="being replayed"):
        resubmit(dead, letters, old, b"{}")
    for event_id in ("incoming/1/~ab", "hook.buffer/3"):
        with pytest.raises(StateError, match="cannot be resubmitted"):
            resubmit(dead, letters, DeadLetter(event_id, "table", "no", b"{}"), b"{}")
    assert counts(dead) == (4, 0, 2)


def test_a_letter_that_is_not_whole_can_be_resubmitted_whole(dead: Ledger, letters: DeadLetters) -> None:
    letters.add([_letter(1, "too large", incomplete="only the beginning is kept")])
    (old,) = letters.get("incoming/1")
    assert resubmit(dead, letters, old, b'{"n": 1}').incomplete == ""


def test_resubmit_sends_the_file_and_says_what_became_of_it(
    file: Path, dead: Ledger, letters: DeadLetters, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[DeadLetter] = []

    def replay_now(graph: Any) -> None:
        sent.extend(letters.replays_requested())
        close_letters(dead, letters, [Resolution(*x.key, Outcome.DELIVERED, "delivered") for x in sent])

    monkeypatch.setattr("signoff.engine.replay.replayer.replay_now", replay_now)
    corrected = file.parent / "corrected.json"
    corrected.write_bytes(b'{"n": 10}')
    done = run("dead-letters", "resubmit", file, "incoming/1", "--payload", corrected, "--json")
    assert done.exit_code == 0, done.output
    assert [(x.event_id, x.payload) for x in sent] == [("incoming/1/+1", b'{"n": 10}')]
    assert json.loads(done.stdout)["delivered"] == 1
    told = run("explain", file, "incoming/1").stdout
    assert "resubmitted as incoming/1/+1" in told and "delivered" in told.splitlines()[0]
    typed = run("dead-letters", "resubmit", file, "incoming/3", "--payload", "-", input='{"n": 30}')
    assert typed.exit_code == 0 and sent[-1].payload == b'{"n": 30}'
    assert run("dead-letters", "resubmit", file, "incoming/3", "--payload", corrected).exit_code == 2
    assert run("audit", file).exit_code == 0 if LogReader(state / "log" / "incoming").head() else True


def test_an_editor_that_changes_nothing_sends_nothing(
    file: Path, dead: Ledger, letters: DeadLetters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VISUAL", "true")
    done = run("dead-letters", "resubmit", file, "incoming/1")
    assert done.exit_code == 1 and "nothing was changed" in done.output
    assert len(letters.list()) == 2 and counts(dead) == (4, 0, 2)


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        (["--reason", "VALUE"], [3]),
        (["--matching", r"^Value \d"], [3]),
        (["--matching", r"\d{3}"], []),
        (["--since", "1970-01-01T00:20:00Z"], [3]),
        (["--until", "1970-01-01T00:20:00"], [1]),
        (["--since", "2h"], []),
        (["--source", "incoming", "--stage", "table"], [1, 3]),
        (["--source", "elsewhere"], []),
    ],
)
def test_every_command_has_the_same_filters(
    file: Path, dead: Ledger, letters: DeadLetters, options: list[str], numbers: list[int]
) -> None:
    wanted = [f"incoming/{number}" for number in numbers]
    for command in ("list", "export"):
        lines = run("dead-letters", command, file, *options, *(["--json"] if command == "list" else []))
        assert [json.loads(line)["event_id"] for line in lines.stdout.splitlines()] == wanted
    shown = run("dead-letters", "show", file, *options, "--json")
    assert [json.loads(line)["event_id"] for line in shown.stdout.splitlines()] == wanted
    dropped = run("dead-letters", "drop", file, *options, "--json")
    assert json.loads(dropped.stdout) == {"asked": len(wanted), "dropped": len(wanted)}
    assert {letter.event_id for letter in letters.list()} == {"incoming/1", "incoming/3"} - set(wanted)


def test_what_cannot_be_meant_is_said(file: Path, dead: Ledger) -> None:
    for option in (["--since", "yesterday"], ["--matching", "("]):
        wrong = run("dead-letters", "list", file, *option)
        assert wrong.exit_code == 2 and option[0] in wrong.output


@pytest.mark.parametrize("command", ["drop", "replay", "list", "show", "export"])
def test_an_empty_choice_is_none_and_does_not_mean_every_letter(
    file: Path, dead: Ledger, letters: DeadLetters, command: str
) -> None:
    for name in ("stage", "source", "reason", "matching", "since", "until", "where"):
        wrong = run("dead-letters", command, file, f"--{name}", "")
        assert wrong.exit_code == 2 and f"--{name}" in wrong.output and "is empty" in wrong.output
    assert [letter.status for letter in letters.list()] == ["stored", "stored"]


def test_nothing_takes_no_events_place(
    file: Path, dead: Ledger, letters: DeadLetters, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = file.parent / "nothing.json"
    nothing.write_bytes(b"\n")
    monkeypatch.setenv("VISUAL", "truncate -s 0")
    for options in (["--payload", "-"], ["--payload", nothing], []):
        wrong = run("dead-letters", "resubmit", file, "incoming/1", *options, input="")
        assert wrong.exit_code == 2 and "is empty" in wrong.output
    assert [x.event_id for x in letters.list()] == ["incoming/1", "incoming/3"] and counts(dead) == (4, 0, 2)


def test_a_letter_with_a_masked_header_is_not_resubmitted(file: Path, letters: DeadLetters) -> None:
    for number, cut in ((5, ""), (6, "only the beginning is kept")):
        headers = {"callback": "https://api.example/x?key=abc123"}
        letters.add([DeadLetter(f"incoming/{number}", "table", "no", b"{", headers, incomplete=cut)])
        (old,) = letters.get(f"incoming/{number}")
        assert "a secret is masked in its header callback" in why_not(old)
        wrong = run("dead-letters", "resubmit", file, f"incoming/{number}", "--payload", "-", input="{}")
        assert wrong.exit_code == 2 and "masked" in wrong.output
    assert [x.event_id for x in letters.list()] == ["incoming/5", "incoming/6"]


def test_a_part_of_a_reason_is_found_whatever_its_case_in_every_alphabet(letters: DeadLetters) -> None:
    letters.add([_letter(1, "Ärger mit ÖSTERREICH"), _letter(2, "Trouble")])
    for part in ("Ärger", "ärger", "ÖSTERREICH", "österreich", "MIT"):
        assert [x.sequence for x in letters.list(reason=part)] == [1], part


def test_an_exported_file_is_whole_and_has_all_that_is_known(
    file: Path, dead: Ledger, letters: DeadLetters
) -> None:
    letters.add([DeadLetter("incoming/5", "table", "no", b"\xff\x00", {"h": "v"}, 1.5, message_id="m")])
    target = file.parent / "letters.jsonl"
    assert run("dead-letters", "export", file, "-o", target).exit_code == 0
    found = [json.loads(line) for line in target.read_text().splitlines()]
    assert [each["event_id"] for each in found] == ["incoming/1", "incoming/3", "incoming/5"]
    assert found[2]["payload_encoding"] == "base64" and found[2]["payload"] == "/wA="
    assert found[2]["headers"] == {"h": "v"} and found[2]["message_id"] == "m"
    assert run("dead-letters", "drop", file, "incoming/5").exit_code == 0
    closed = run("dead-letters", "export", file, "--closed").stdout.splitlines()
    assert [json.loads(line)["status"] for line in closed] == ["stored", "stored", "dropped"]
    (file.parent / "kept.jsonl").write_text("as it was")
    wrong = run("dead-letters", "export", file, "incoming/0", "-o", file.parent / "kept.jsonl")
    assert wrong.exit_code == 2 and (file.parent / "kept.jsonl").read_text() == "as it was"


def test_the_first_reason_is_kept_and_found_when_a_replay_fails_for_another(
    file: Path, dead: Ledger, letters: DeadLetters
) -> None:
    for reason in ("still bad", "worse"):
        letters.request_replay(letters.get("incoming/1"))
        close_letters(dead, letters, [Resolution("incoming/1", "table", Outcome.DEAD_LETTERED, reason)])
    (letter,) = letters.list(LetterFilter(reason="NO SUCH"))
    assert (letter.reason, letter.first_reason, letter.attempts) == ("worse", "no such column", 3)
    assert "failed first: no such column" in run("explain", file, "incoming/1").stdout
    assert "first_reason: no such column" in run("dead-letters", "show", file, "incoming/1").stdout
