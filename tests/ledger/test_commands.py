"""status, audit, explain and dead-letters, as a user calls them, with a real log."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pyarrow as pa
import pytest
from pyroaring import BitMap64
from typer.testing import CliRunner, Result

from signoff.cli import app
from signoff.engine.state_dir.copies import Place, write_place
from signoff.errors import StateError
from signoff.ledger import (
    DeadLetter,
    DeadLetters,
    Ledger,
    Outcome,
    Resolution,
    RowRef,
    RunLock,
)
from signoff.ledger.batch_state import Done, HandedOn, OwesAll, OwesRows
from signoff.ledger.dead_letters import close_letters
from signoff.ledger.interrupted_drops import dropping, put_back
from signoff.log import LogWriter
from signoff.log.event_schema import EVENT_SCHEMA
from signoff.pipeline.model import LogSettings
from signoff.terminal import harmless
from tests.ledger.attempts import attempt

PIPELINE = """
name: alarms
sources:
  incoming: {type: files, path: "./in/*.jsonl"}
sinks:
  table: {type: sqlite, input: incoming, path: ./out.db, table: alarms}
  archive: {type: files, input: incoming, path: ./out, format: jsonl}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "alarms.yaml"
    path.write_text(PIPELINE)
    return path


@pytest.fixture
def filled(file: Path, ledger: Ledger, letters: DeadLetters, state: Path) -> Path:
    """Ten events: 1 dead-lettered, 2 refused, 3 dropped, 6 owed by `table`, 8 and 9 not in a batch."""
    log = LogWriter(state / "log" / "incoming", LogSettings())
    rows = [
        {"payload": b'{"n": %d}' % n if n != 7 else b"\xff", "received_at": datetime(2026, 1, 1, tzinfo=UTC)}
        for n in range(10)
    ]
    log.append(pa.RecordBatch.from_pylist(rows, schema=EVENT_SCHEMA))
    log.sync()
    log.close()
    letters.add([DeadLetter("incoming/1", "table", "no such column", b'{"n": 1}', {"file": "a"})])
    attempt(ledger, 0, 4, delivered=[0], dead_lettered=[1], refused=[2], rows={"table": 1})
    owing = OwesRows((RowRef(6),), attempts=3, error="database is locked", since=900.0)
    attempt(ledger, 4, 8, delivered=[4, 5, 6, 7], owed=[6], sinks={"table": owing})
    return file


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_numbers_of_status_are_of_one_moment(
    filled: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that is recorded while status reads is in all of its numbers, or in none."""
    monkeypatch.setattr("signoff.watch.status.time.time", lambda: 2e9)
    before = json.loads(run("status", filled, "--json").stdout)
    read, done = Ledger.books, threading.Event()

    def books(self: Ledger, source: str) -> Any:
        found = read(self, source)
        if not done.is_set():
            done.set()
            attempt(ledger, 8, 10, delivered=[8, 9], rows={"table": 2})
        return found

    monkeypatch.setattr(Ledger, "books", books)
    during = json.loads(run("status", filled, "--json").stdout)
    assert done.is_set()
    assert (during["sources"], during["sinks"]) == (before["sources"], before["sinks"])
    after = json.loads(run("status", filled, "--json").stdout)
    assert after["sources"]["incoming"]["delivered"] == before["sources"]["incoming"]["delivered"] + 2
    assert after["sinks"]["table"]["rows"] == before["sinks"]["table"]["rows"] + 2


def test_audit_prints_the_account_as_json(filled: Path) -> None:
    result = run("audit", filled, "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {
        "sources": {
            "incoming": {
                "received": 10, "delivered": 4, "dropped": 1, "dead_lettered": 1, "refused": 1, "expired": 0,
                "in_flight": 3,
            }
        },
        "buffers": {},
        "balanced": True,
        "ignored": {"incoming": 0},
        "stranded": [],
    }  # fmt: skip


def test_audit_ends_with_the_account_in_one_line(filled: Path) -> None:
    last = run("audit", filled).stdout.splitlines()[-1]
    assert last == (
        "account: received=10 delivered=4 dropped=1 dead_lettered=1 refused=1 expired=0 in_flight=3"
    )


def test_audit_that_finds_something_exits_with_one(filled: Path, state: Path) -> None:
    with DeadLetters(state / "dead_letters.db") as letters:
        letters.resolve("incoming/1", "table", Outcome.DELIVERED)  # without telling the ledger
    result = run("audit", filled, "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["balanced"] is False
    assert "letter-missing" in result.stderr


@pytest.mark.parametrize(
    ("event_id", "where", "acknowledged", "why"),
    [
        ("incoming/0", "delivered", True, "signed"),
        ("incoming/1", "dead_lettered", True, "dead letter"),
        ("incoming/2", "refused", False, "refused for a reason"),
        ("incoming/3", "dropped", True, "nothing of it was left"),
        ("incoming/6", "in flight", False, "tried 3 times: database is locked"),
        ("incoming/6/0", "in flight", False, "being worked on"),
        ("incoming/9", "waiting", False, "next batch"),
    ],
)
def test_explain_says_where_an_event_is(
    filled: Path, event_id: str, where: str, acknowledged: bool, why: str
) -> None:
    result = run("explain", filled, event_id, "--json")
    story = json.loads(result.stdout)
    assert result.exit_code == 0
    assert (story["state"], story["acknowledged"]) == (where, acknowledged)
    assert why in story["why"]


def test_explain_shows_payload_and_the_part_of_each_sink(filled: Path) -> None:
    text = run("explain", filled, "incoming/6").stdout
    assert '{"n": 6}' in text
    assert "table owes it (since 1970-01-01T00:15:00Z, tried 3 times: database is locked)" in text
    assert json.loads(run("explain", filled, "incoming/7", "--json").stdout)["payload_encoding"] == "base64"


@pytest.mark.parametrize(("event_id", "code"), [("incoming/10", 1), ("elsewhere/1", 1), ("nonsense", 2)])
def test_explain_of_what_was_never_received_fails(filled: Path, event_id: str, code: int) -> None:
    assert run("explain", filled, event_id).exit_code == code


@pytest.mark.parametrize(
    "words",
    [
        ("explain", "incoming/1/\udcff"), ("dead-letters", "show", "incoming/1/\udcff"),
        ("dead-letters", "drop", "\udcff/1"), ("dead-letters", "list", "--stage", "\udcff"),
        ("dead-letters", "list", "--reason", "\udcff"), ("sources", "drop", "\udcff"),
        ("sources", "reset", "\udcff"), ("buffers", "drop", "\udcff"),
    ],
)  # fmt: skip
def test_an_argument_that_is_not_utf_8_is_wrong_usage(filled: Path, words: tuple[str, ...]) -> None:
    place = 1 if len(words) == 2 else 2
    result = run(*words[:place], filled, *words[place:])
    assert result.exit_code == 2 and isinstance(result.exception, SystemExit), result.exception


def test_status_names_what_is_in_flight_and_which_sink_fails(filled: Path, state: Path) -> None:
    found = json.loads(run("status", filled, "--json").stdout)
    assert not found["alive"]
    assert found["sources"]["incoming"]["in_flight"] == 3
    assert found["sinks"]["table"] == {
        "rows": 1, "owes": 1, "failing_since": "1970-01-01T00:15:00Z", "failing_seconds": ANY,
        "last_error": "database is locked",
    }  # fmt: skip
    (state / "intake" / "incoming").mkdir(parents=True)
    (state / "intake" / "incoming" / "status.json").write_text('{"state": "held", "reason": "log is full"}')
    with RunLock(state):
        text = run("status", filled).stdout
    assert "running" in text
    assert "held back: log is full" in text
    assert "1 dead letter; signoff dead-letters list FILE shows it\n" in text


def test_a_sink_is_not_ok_while_it_owes_what_it_was_never_recorded_to_have_failed_on(
    filled: Path, ledger: Ledger
) -> None:
    """The run was killed during the first pass over a batch."""
    assert "archive     0  ok" in run("status", filled).stdout
    ledger.open_batch("incoming", 8, 10, ["archive", "table"])
    assert "archive     0  owes 2 events" in run("status", filled).stdout
    owed = {
        name: sink["owes"]
        for name, sink in json.loads(run("status", filled, "--json").stdout)["sinks"].items()
    }
    assert owed == {"archive": 2, "table": 3}
    sinks = {"archive": OwesAll(BitMap64([9]), attempts=1, error="down"), "table": HandedOn(BitMap64([8]))}
    ledger.record("incoming", 8, 10, delivered=BitMap64(), outcomes=[], owed=BitMap64([8, 9]), sinks=sinks)
    owed = {
        name: sink["owes"]
        for name, sink in json.loads(run("status", filled, "--json").stdout)["sinks"].items()
    }
    assert owed == {"archive": 1, "table": 1}, "what came to one, and not what was handed on"


def test_letters_are_listed_one_json_object_a_line(filled: Path) -> None:
    (line,) = run("dead-letters", "list", filled, "--json").stdout.splitlines()
    found = json.loads(line)
    assert {name: found[name] for name in ("event_id", "source", "stage", "reason", "payload")} == {
        "event_id": "incoming/1", "source": "incoming", "stage": "table", "reason": "no such column",
        "payload": '{"n": 1}',
    }  # fmt: skip
    assert not run("dead-letters", "list", filled, "--json", "--stage", "archive").stdout
    assert "no such column" in run("dead-letters", "list", filled).stdout


def test_a_reason_is_cut_for_a_terminal_only(
    filled: Path, letters: DeadLetters, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = "refused: " + "x" * 200 + "\nbecause of its end"
    letters.add([DeadLetter("incoming/2", "table", reason, b"{}")])
    assert reason.replace("\n", " ") in run("dead-letters", "list", filled).stdout.splitlines()[-1]
    monkeypatch.setattr("signoff.terminal.is_terminal", lambda stream: True)
    assert run("dead-letters", "list", filled).stdout.splitlines()[-1].endswith("xxx…")


def test_one_letter_is_shown_whole(filled: Path) -> None:
    assert json.loads(run("dead-letters", "show", filled, "incoming/1", "--json").stdout)["headers"] == {
        "file": "a"
    }
    assert run("dead-letters", "show", filled, "incoming/2").exit_code == 1


def test_what_input_says_to_a_terminal_is_written_out_and_not_obeyed(
    filled: Path, letters: DeadLetters, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters.add(
        [DeadLetter("incoming/1", "table", "no: \x1b[2K\r\x9b1G", b"\x1b]52;c;eA==\x07{", {"h": "\x7f"})]
    )
    calls = [
        ("list",),
        ("list", "--json"),
        ("show", "incoming/1"),
        ("show", "incoming/1", "--json"),
        ("export",),
    ]
    commands = [("dead-letters", name, filled, *more) for name, *more in calls]
    commands += [("explain", filled, "incoming/1")]
    assert any("\x1b" in run(*command).stdout for command in commands), "into a file it goes as it is"
    monkeypatch.setattr("signoff.terminal.is_terminal", lambda stream: True)
    for command in commands:
        said = run(*command).stdout
        assert said and not set(said) & {*"\x1b\r\x07\x7f\x9b"} and "\\u001b[2K" in said, command


def test_what_a_sink_says_is_not_obeyed_by_the_terminal_that_shows_a_status(
    filled: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    owing = OwesRows((RowRef(8),), attempts=3, error="no \x1b[2K\x9b1G", since=900.0)
    attempt(ledger, 8, 10, delivered=[9], owed=[8], sinks={"table": owing})
    commands = [("status", filled), ("status", filled, "--json")]
    assert all("\x9b" in run(*command).stdout for command in commands), "into a file it goes as it is"
    monkeypatch.setattr("signoff.terminal.is_terminal", lambda stream: True)
    for command in commands:
        said = run(*command).stdout
        assert not set(said) & {*"\x1b\r\x9b"} and "\\u001b[2K" in said, command


def test_a_terminal_is_known_as_one(tmp_path: Path) -> None:
    ours, theirs = os.openpty()
    with open(theirs, "w") as terminal, open(tmp_path / "file", "w") as file:
        assert harmless("\x1b[2K\tä\n", terminal) == "\\u001b[2K\tä\n"
        assert harmless("\x1b[2K", file) == "\x1b[2K"
    os.close(ours)


def test_dropped_letter_is_accounted_for(filled: Path) -> None:
    assert json.loads(run("dead-letters", "drop", filled, "incoming/1", "--json").stdout)["dropped"] == 1
    account = json.loads(run("audit", filled, "--json").stdout)["sources"]["incoming"]
    assert (account["dropped"], account["dead_lettered"]) == (2, 0)


def test_nothing_is_dropped_or_replayed_without_saying_what(filled: Path) -> None:
    for command in ("drop", "replay"):
        assert run("dead-letters", command, filled).exit_code == 2
        assert run("dead-letters", command, filled, "incoming/0").exit_code == 2


@pytest.fixture
def living_run(state: Path) -> Iterator[list[Outcome]]:
    """A run that replays what it is asked to; how it ends is the first item of the list."""
    how, over = [Outcome.DELIVERED], threading.Event()
    lock = RunLock(state)

    def work() -> None:
        with Ledger(state / "ledger.db") as ledger, DeadLetters(state / "dead_letters.db") as letters:
            while not over.wait(0.01):
                asked = letters.replays_requested()
                close_letters(
                    ledger, letters, [Resolution(x.event_id, x.stage, how[0], "still locked") for x in asked]
                )

    thread = threading.Thread(target=work)
    lock.acquire()
    thread.start()
    yield how
    over.set()
    thread.join()
    lock.release()


def test_replay_waits_for_the_run_and_is_accounted_for(filled: Path, living_run: list[Outcome]) -> None:
    result = run("dead-letters", "replay", filled, "--all", "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    (letter,) = found.pop("letters")
    assert letter == {"event_id": "incoming/1", "stage": "table", "outcome": "delivered", "reason": ""}
    assert {name: number for name, number in found.items() if number} == {
        "asked": 1, "replayed": 1, "delivered": 1,
    }  # fmt: skip
    assert (found["failed_again"], found["waiting"]) == (0, 0)
    account = json.loads(run("audit", filled, "--json").stdout)["sources"]["incoming"]
    assert (account["delivered"], account["dead_lettered"]) == (5, 0)


def test_replay_waits_for_what_it_was_asked_for_and_for_no_other_letter(
    filled: Path, living_run: list[Outcome], letters: DeadLetters
) -> None:
    letters.add([DeadLetter("incoming/5", "table", "bad", b"{}")])
    with letters._store.write() as db:  # the run must not see it in between
        db.execute("UPDATE letters SET status = 'handed', handed = '[\"removed\"]' WHERE sequence = 5")
    done: list[Result] = []
    waits = threading.Thread(
        target=lambda: done.append(run("dead-letters", "replay", filled, "incoming/1")), daemon=True
    )
    waits.start()
    waits.join(30)
    in_vain = waits.is_alive()
    letters.take_for_drop(letters.get("incoming/5"))
    waits.join()
    assert done[0].exit_code == 0 and letters.get("incoming/1")[0].status == "replayed"
    assert not in_vain, "it waited for another letter"


@pytest.mark.parametrize("alive", [False, True], ids=["killed", "at work"])
def test_a_letter_that_an_interrupted_drop_has_left_is_replayed_and_one_being_dropped_is_not(
    filled: Path, living_run: list[Outcome], letters: DeadLetters, alive: bool
) -> None:
    with dropping(letters.path) if alive else nullcontext():
        letters.begin_drop(letters.list())
        result = run("dead-letters", "replay", filled, "--all", "--json")
    (said,) = json.loads(result.stdout)["letters"]
    assert (said["outcome"], said["reason"]) == (
        ("not_replayable", "it is being dropped") if alive else ("delivered", "")
    )
    assert result.exit_code == alive
    assert letters.get("incoming/1")[0].status == ("dropping" if alive else "replayed")


def test_a_letter_whose_drop_is_accounted_for_is_not_stored_again(
    filled: Path, ledger: Ledger, letters: DeadLetters
) -> None:
    letters.begin_drop(found := letters.list())
    ledger.resolve([Resolution(*found[0].key, Outcome.DROPPED)])  # killed here
    assert put_back(ledger, letters) == 0 and letters.list()[0].status == "dropping"
    assert run("dead-letters", "drop", filled, "--all").exit_code == 0
    assert not letters.list()


def test_replay_that_fails_again_says_why(filled: Path, living_run: list[Outcome]) -> None:
    living_run[0] = Outcome.DEAD_LETTERED
    result = run("dead-letters", "replay", filled, "incoming/1")
    assert result.exit_code == 1
    assert "failed again at table: still locked" in result.stderr


def test_replay_without_a_run_is_done_at_once(
    filled: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def replay_now(graph: Any) -> None:
        with Ledger(state / "ledger.db") as ledger, DeadLetters(state / "dead_letters.db") as letters:
            asked.extend(letter.event_id for letter in letters.replays_requested())
            done = [Resolution(x.event_id, x.stage, Outcome.DELIVERED) for x in letters.replays_requested()]
            close_letters(ledger, letters, done)

    monkeypatch.setattr("signoff.engine.replay.replayer.replay_now", replay_now)
    assert run("dead-letters", "replay", filled, "--stage", "table").exit_code == 0
    assert asked == ["incoming/1"]


def test_replay_waits_for_a_run_that_begins_at_the_same_moment(
    filled: Path, living_run: list[Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter([None])  # the first look comes a moment before the run takes its lock
    really = RunLock.held_by
    monkeypatch.setattr(RunLock, "held_by", lambda lock: next(looks, really(lock)))

    def replay_now(graph: Any) -> None:
        raise StateError("the state is in use by a run")

    monkeypatch.setattr("signoff.engine.replay.replayer.replay_now", replay_now)
    result = run("dead-letters", "replay", filled, "--all", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["replayed"] == 1


def test_replay_that_breaks_down_leaves_the_letters_stored(
    filled: Path, letters: DeadLetters, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replay_now(graph: Any) -> None:
        raise RuntimeError("Spark did not start")

    monkeypatch.setattr("signoff.engine.replay.replayer.replay_now", replay_now)
    assert run("dead-letters", "replay", filled, "--all").exit_code == 1
    assert letters.list()[0].status == "stored"


def test_a_row_of_which_one_event_is_not_whole_cannot_be_replayed_and_none_of_its_letters_says_otherwise(
    filled: Path, letters: DeadLetters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("signoff.engine.replay.replayer.replay_now", lambda _: 0)
    cut = "only the beginning is kept"
    letters.add([DeadLetter("incoming/4/~ab", "table", "no", b"{}"),
                 DeadLetter("incoming/5/~ab", "table", "no", b"{", incomplete=cut)])  # fmt: skip
    result = run("dead-letters", "replay", filled, "incoming/4/~ab", "--json")
    assert result.exit_code == 1
    ends = {each["event_id"]: each for each in json.loads(result.stdout)["letters"]}
    assert {end["outcome"] for end in ends.values()} == {"not_replayable"} and len(ends) == 2
    assert ends["incoming/4/~ab"]["reason"] == f"incoming/5, which it was also made of: {cut}"
    listed = [json.loads(line) for line in run("dead-letters", "list", filled, "--json").stdout.splitlines()]
    assert {each["event_id"]: each["replayable"] for each in listed} == {
        "incoming/1": True, "incoming/4/~ab": False, "incoming/5/~ab": False,
    }  # fmt: skip
    shown = json.loads(run("dead-letters", "show", filled, "incoming/4/~ab", "--json").stdout)
    assert cut in shown["not_replayable"]


def test_every_command_works_before_there_is_any_state(file: Path, state: Path) -> None:
    for command in (["status"], ["audit"], ["dead-letters", "list"]):
        assert run(*command, file, "--json").exit_code == 0
    assert run("dead-letters", "drop", file, "--all").exit_code == 0
    assert not state.exists()


CSV = """
name: alarms
sources:
  incoming: {type: files, path: "./in/*.csv", schema: "n INT"}
sinks:
  table: {type: sqlite, input: incoming, path: ./out.db, table: alarms}
  archive: {type: files, input: incoming, path: ./out, format: jsonl}
"""


def test_what_was_exported_and_edited_is_resubmitted_at_once(
    filled: Path, living_run: list[Outcome], letters: DeadLetters, tmp_path: Path
) -> None:
    letters.add([DeadLetter("incoming/2", "archive", "too long", b'{"n": 2}', {"file": "a"})])
    exported = tmp_path / "letters.jsonl"
    assert run("dead-letters", "export", filled, "-o", exported).exit_code == 0
    lines = [json.loads(line) for line in exported.read_text().splitlines()]
    assert [line["event_id"] for line in lines] == ["incoming/1", "incoming/2"]
    lines[0]["payload"] = '{"n": 11}'
    exported.write_text("".join(json.dumps(line) + "\n\n" for line in lines))
    result = run("dead-letters", "resubmit", filled, "--from", exported)
    assert result.exit_code == 0, result.output
    assert "1 not changed, and left as they are" in result.output
    assert "incoming/1 is resubmitted as incoming/1/+1" in result.output
    (new,) = letters.get("incoming/1/+1")
    assert new.payload == b'{"n": 11}' and new.headers == {"file": "a", "signoff-resubmits": "incoming/1"}
    assert [letter.status for letter in letters.get("incoming/2")] == ["stored"]
    again = run("dead-letters", "resubmit", filled, "--from", exported)
    assert again.exit_code == 2 and "line 1: there is no open dead letter of incoming/1" in again.output


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "line 2: not JSON"),
        ('{"event_id": "incoming/1"}', "line 2: not as `dead-letters export` writes it"),
        ('{"event_id": "incoming/9", "payload": "{}"}', "line 2: there is no open dead letter of incoming/9"),
        ('{"event_id": "incoming/1", "payload": " "}', "line 2: the corrected payload is empty"),
        ('{"event_id": "incoming/1", "payload": "2"}', "line 2: incoming/1 is there twice"),
        ('{"event_id": "x", "payload": "2"}', "line 2:"),
        (
            '{"event_id": "incoming/1", "payload": "?", "payload_encoding": "base64"}',
            "line 2: the payload",
        ),
    ],
)
def test_nothing_of_a_file_is_resubmitted_if_a_line_of_it_cannot_be_used(
    filled: Path, letters: DeadLetters, tmp_path: Path, line: str, why: str
) -> None:
    given = tmp_path / "letters.jsonl"
    given.write_text('{"event_id": "incoming/1", "payload": "1"}\n' + line + "\n")
    result = run("dead-letters", "resubmit", filled, "--from", given)
    assert result.exit_code == 2
    assert why in result.output and "nothing was sent" in result.output
    assert [letter.status for letter in letters.get("incoming/1")] == ["stored"]


def test_resubmit_names_the_corrected_event_that_failed_in_its_turn(
    filled: Path, living_run: list[Outcome]
) -> None:
    living_run[0] = Outcome.DEAD_LETTERED
    corrected = filled.with_name("corrected.json")
    corrected.write_text('{"n": 12}')
    assert run("dead-letters", "resubmit", filled, "incoming/1", "--payload", corrected).exit_code == 1
    again = run("dead-letters", "resubmit", filled, "incoming/1", "--payload", corrected)
    assert again.exit_code == 2
    assert "there is no open dead letter of incoming/1; open is incoming/1/+1" in again.output


def test_a_corrected_row_of_csv_is_an_object_of_its_columns(filled: Path, letters: DeadLetters) -> None:
    filled.write_text(CSV)
    corrected = filled.with_name("corrected.json")
    corrected.write_text("11\n")
    result = run("dead-letters", "resubmit", filled, "incoming/1", "--payload", corrected)
    assert result.exit_code == 2
    assert "a JSON object of the columns" in result.output and '{"n": 1}' in result.output
    assert [letter.status for letter in letters.get("incoming/1")] == ["stored"]


def test_a_letter_that_can_only_be_resubmitted_says_so(filled: Path, letters: DeadLetters) -> None:
    cut = "its source could not read it whole: too long"
    letters.add(
        [
            DeadLetter("incoming/2", "incoming", "too long", b"{", incomplete=cut),
            DeadLetter("incoming/3", "gone", "too long", b"{", incomplete=cut),
        ]
    )
    listed = run("dead-letters", "list", filled).output
    assert f"* 1 cannot be replayed: {cut}; but it can be resubmitted, corrected" in listed
    assert f"* 1 cannot be replayed: {cut}\n" in listed, "its stage is gone: a corrected one cannot go on"


def test_status_says_how_old_the_oldest_event_in_flight_is(filled: Path) -> None:
    source = json.loads(run("status", filled, "--json").stdout)["sources"]["incoming"]
    assert source["oldest_in_flight"] == "2026-01-01T00:00:00Z"
    assert source["oldest_in_flight_seconds"] > 86_400


def test_status_of_a_state_that_was_copied_shows_nothing_that_processes_said_of_themselves_elsewhere(
    filled: Path, ledger: Ledger, state: Path
) -> None:
    said = {"pid": 1, "state": "failed", "reason": "cannot read /original/in/a.jsonl"}
    (state / "intake/incoming").mkdir(parents=True)
    (state / "intake/incoming/status.json").write_text(json.dumps(said))
    with ledger.store.write() as db:
        write_place(db, Place(str(state.resolve()), "/", 1, "here"), None)
    assert "/original" in run("status", filled).output
    with ledger.store.write() as db:
        write_place(db, Place("/original/state", "/original", 1, "here"), None)
    shown = run("status", filled).output
    assert "/original/in" not in shown and "database is locked" not in shown
    assert "last used in /original/state, and no run has begun here since" in shown
    found = json.loads(run("status", filled, "--json").stdout)
    assert found["not_run_here_since"] == "/original/state"
    assert found["sources"]["incoming"]["reason"] == "" and found["sinks"]["table"]["failing_since"] is None
    assert found["sources"]["incoming"]["received"] == 10


def test_a_state_directory_that_cannot_be_made_or_read_is_an_error_that_says_what_to_do(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").touch()
    lock = RunLock(tmp_path / "file" / "state")
    with pytest.raises(
        StateError, match=r"cannot be made or written to: .*with `state:` or --set state=PATH"
    ):
        lock.acquire()
    with pytest.raises(StateError, match="cannot be read: Not a directory"):
        lock.held_by()


WINDOW = """
name: alarms
sources:
  incoming: {type: files, path: "./in/*.jsonl"}
transforms:
  parsed: {type: parse_json, input: incoming, schema: "n INT, at TIMESTAMP"}
  counts: {type: window, input: parsed, time: at, size: 10m, aggregates: {n: count(*)}}
sinks:
  table: {type: sqlite, input: counts, path: ./out.db, table: alarms}
"""


def test_an_event_in_a_window_is_explained_as_that_and_counted_by_status(
    filled: Path, ledger: Ledger
) -> None:
    filled.write_text(WINDOW)
    handed = HandedOn(BitMap64([8, 9]), since=900.0)
    attempt(ledger, 8, 10, owed=[8, 9], sinks={"counts.state": handed, "table": Done()})
    told = run("explain", filled, "incoming/8").output
    assert 'window "counts" has it (since 1970-01-01T00:15:00Z)' in told
    assert 'in window "counts"' in told
    assert json.loads(run("status", filled, "--json").stdout)["windows"]["counts"]["events"] == 2
    assert "events in it" in run("status", filled).output
