"""How far a log may be trimmed whose events may come again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from signoff.intake import trim_limit
from signoff.intake.status import Status, StatusFile
from signoff.intake.trim_limit import ToldUpto


def says(directory: Path, settled: int, pid: int, state: str = "receiving") -> None:
    StatusFile(directory).report(Status(pid, state, settled_sequence=settled))  # type: ignore[arg-type]


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
