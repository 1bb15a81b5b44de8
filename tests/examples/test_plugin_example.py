"""examples/plugin, installed: a source of another package is used by every command like a built-in one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from signoff import installed_types
from signoff.cli import app
from tests.examples.packages import pip_install
from tests.promises.product import SPARK, Product

pytestmark = pytest.mark.servers

EXAMPLE = Path(__file__).parents[2] / "examples" / "plugin"
SIGNOFF = Path(sys.executable).with_name("signoff")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("environment") / "site"
    pip_install(directory, [EXAMPLE])
    return directory


@pytest.fixture
def environment(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Here, and in all processes that are started."""
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", str(site))
    installed_types.forget()
    yield
    monkeypatch.undo()
    installed_types.forget()


def call(*command: str) -> str:
    done = CliRunner().invoke(app, list(command), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_commands_know_it_like_a_built_in_type(environment: None) -> None:
    file = str(EXAMPLE / "pipeline.yaml")
    assert "Mails of a Maildir" in call("describe")
    assert "poll_ms: whole number ≥ 1; default 200" in call("describe", "maildir")
    schema = json.loads(call("describe", "--schema"))
    assert schema["$defs"]["source_maildir"]["properties"]["path"]["type"] == "string"
    assert "maildir" in call("graph", file) and "maildir" in call("graph", str(EXAMPLE / "pipeline.py"))
    assert "type: maildir" in call("config", file)
    wrong = CliRunner().invoke(app, ["check", file, "--set", "sources.incoming.pathh=x"])
    assert wrong.exit_code == 1
    assert 'source "incoming" has no field "pathh"; did you mean "path"?' in wrong.output


class Mails(Product):
    """The pipeline of the example, and somebody who delivers mails."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        for name in ("pipeline.yaml", "pipeline.py"):
            shutil.copy(EXAMPLE / name, directory)
        for name in ("new", "cur", "tmp"):
            (directory / "Maildir" / name).mkdir(parents=True)
        self.delivered = 0

    def deliver(self, subject: str) -> None:
        self.delivered += 1
        mail = self.directory / "Maildir" / "tmp" / f"{self.delivered:04d}.mail"
        mail.write_text(f"From: plant@example.org\nSubject: {subject}\n\n")
        mail.rename(self.directory / "Maildir" / "new" / mail.name)

    def seen(self) -> int:
        return len([*self.directory.glob("Maildir/cur/*:2,S")])

    def signoff(self, *command: str) -> str:
        """A command in a process of its own, which starts Spark."""
        done = subprocess.run([str(SIGNOFF), *command], capture_output=True, text=True, cwd=self.directory)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def mails(tmp_path: Path, environment: None) -> Iterator[Mails]:
    with Mails(tmp_path / "mails") as product:
        yield product


@pytest.mark.spark
@pytest.mark.crash
def test_a_run_with_it_is_accounted_for_and_a_killed_intake_loses_no_mail(mails: Mails) -> None:
    assert "is fine" in mails.signoff("check", "pipeline.yaml")
    assert "1 passed" in mails.signoff("test", "pipeline.yaml")

    running = mails.start("--set", f"spark={json.dumps(SPARK)}")
    for number in range(30):
        mails.deliver(f"ALARM {number}: door open")
    running.wait_for(mails.received)
    mails.kill9(mails.intake_pid())
    for number in range(30, 60):
        mails.deliver(f"ALARM {number}: door open")
    mails.deliver("lunch?")
    running.wait_for(lambda: mails.seen() == 61)
    mails.kill9(mails.intake_pid())
    mails.deliver("ALARM 60: door closed")
    running.wait_for(lambda: mails.seen() == 62)
    assert running.terminate().code == 0

    assert [row["station"] for row in mails.table("alarms", "out/alarms.db")] == sorted(range(61), key=_place)
    account = mails.account()
    assert (account["received"], account["delivered"], account["dead_lettered"]) == (62, 61, 1)
    assert mails.status()["sources"]["incoming"]["received"] == 62
    (letter,) = mails.dead_letters()
    assert letter["stage"] == "alarms"
    assert mails.explain(letter["event_id"])["state"] == "dead_lettered"
    assert not [*mails.directory.glob("Maildir/new/*")]


def _place(number: int) -> str:
    """Where its row stands among others: the ids are texts."""
    return f"incoming/{number + (number == 60)}"


@pytest.mark.spark
@pytest.mark.crash
def test_the_pipeline_in_python_is_right_and_runs(mails: Mails) -> None:
    mails.deliver("ALARM 1: door open")
    mails.deliver("lunch?")
    mails.signoff("run", "pipeline.py", "--once", "--quiet")
    assert [row["subject"] for row in mails.table("alarms", "out/alarms.db")] == ["ALARM 1: door open"]
    assert mails.seen() == 2


def test_its_own_tests_pass(site: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(EXAMPLE / "tests")],
        env={**os.environ, "PYTHONPATH": str(site)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
