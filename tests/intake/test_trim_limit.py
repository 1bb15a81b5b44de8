"""How far a log may be trimmed whose events may come again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from signoff.intake import trim_limit
from signoff.intake.status import Status, StatusFile
from signoff.intake.trim_limit import ToldUpto


def says(directory: Path, settled: int, pid: int, state: str = "receiving", **more: Any) -> None:
    StatusFile(directory).report(Status(pid, state, settled_sequence=settled, **more))  # type: ignore[arg-type]


@pytest.fixture
def dead() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_log_is_kept_from_where_its_source_was_told(tmp_path: Path) -> None:
    upto = ToldUpto(tmp_path)
    says(tmp_path, 10, os.getpid())
    assert upto.bound(30) == 10
    says(tmp_path, 25, os.getpid())
    assert upto.bound(30) == 25
    says(tmp_path, 40, os.getpid())
    assert upto.bound(30) == 30


def test_without_an_intake_there_is_nobody_to_be_told(tmp_path: Path) -> None:
    assert ToldUpto(tmp_path).bound(30) == 30


@pytest.mark.parametrize("state", ["receiving", "failed"])
def test_for_a_dead_intake_the_log_is_kept_as_long_as_it_is_dead(
    tmp_path: Path, dead: int, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    monkeypatch.setattr(trim_limit, "PATIENCE_S", 0.0)
    upto = ToldUpto(tmp_path)
    says(tmp_path, 10, dead if state == "receiving" else os.getpid(), state)
    assert [upto.bound(30) for _ in range(3)] == [10, 10, 10]


def test_a_living_intake_that_cannot_say_how_far_it_is_fills_no_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trim_limit, "PATIENCE_S", 0.0)
    upto = ToldUpto(tmp_path)
    says(tmp_path, 10, os.getpid())
    assert upto.bound(30) == 10
    assert upto.bound(40) == 30, "what was asked for a while ago"
    assert upto.bound(50) == 40


def test_the_log_is_kept_from_the_first_event_that_was_told_and_not_answered(tmp_path: Path) -> None:
    assert ToldUpto(tmp_path).unanswered() is None
    says(tmp_path, 30, os.getpid(), unanswered_sequence=4)
    assert ToldUpto(tmp_path).unanswered() == 4


def test_what_was_not_answered_keeps_no_room_from_a_living_intake_that_has_none(
    tmp_path: Path, dead: int
) -> None:
    """The next message may wait in front of the one that would be answered."""
    held: dict[str, Any] = {"unanswered_sequence": 4, "held_because": "the disk is full"}
    says(tmp_path, 30, os.getpid(), "held", **held)
    assert ToldUpto(tmp_path).unanswered() is None
    says(tmp_path, 30, dead, "held", **held)
    assert ToldUpto(tmp_path).unanswered() == 4
