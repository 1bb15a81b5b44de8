"""Every command of docs/tutorial.md does what the page says."""

from __future__ import annotations

import re
import shlex
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from signoff.cli.new import PIPELINE, alarms
from tests.promises.product import Inline

pytestmark = pytest.mark.spark

PAGE = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text(encoding="utf-8")


def commands() -> list[list[str]]:
    """The lines of the page that are commands of ours, but for the first, which makes the project."""
    blocks = re.findall(r"```\n(.*?)```", PAGE, re.DOTALL)
    return [
        shlex.split(line) for block in blocks for line in block.splitlines() if line.startswith("signoff ")
    ][1:]


@pytest.fixture
def product(tmp_path: Path, spark: Any) -> Iterator[Inline]:
    with Inline(tmp_path, spark) as made:
        made.file.write_text(PIPELINE.format(name="alarms"))
        made.put("alarms.jsonl", alarms().splitlines())
        yield made


def test_the_commands_of_the_tutorial_do_what_it_says(product: Inline) -> None:
    todo = commands()
    assert [command[1] for command in todo] == [
        "graph", "run", "dead-letters", "audit", "explain", "dead-letters", "audit", "dead-letters",
        "dead-letters", "config",
    ]  # fmt: skip

    def call(*expected: str) -> str:
        _, *args = todo.pop(0)
        assert tuple(args[: len(expected)]) == expected
        done = product.command(*[str(product.file) if each == "pipeline.yaml" else each for each in args])
        assert done.code == 0, done.output
        return done.output

    assert "■ table  sqlite" in call("graph")
    (product.directory / "out" / "alarms.db").mkdir(parents=True)
    assert todo.pop(0)[1:] == ["run", "pipeline.yaml", "--once"]
    running = product.start()
    running.wait_for(lambda: len(product.dead_letters()) == 11)
    listed = call("dead-letters", "list")
    assert listed.count("gave up after 5 attempts") == 10 and "incoming/39  parsed" in listed
    assert "received=40 delivered=29 dropped=0 dead_lettered=11" in call("audit")
    explained = call("explain")
    assert "dead letter" in explained and "archive" in explained
    (product.directory / "out" / "alarms.db").rmdir()
    call("dead-letters", "replay")
    with sqlite3.connect(product.directory / "out" / "alarms.db") as db:
        assert db.execute("SELECT count(*) FROM failed_equipment").fetchone() == (10,)
    assert len(product.rows("out/archive")) == 39
    assert "received=40 delivered=39 dropped=0 dead_lettered=1" in call("audit")
    assert "not valid JSON" in call("dead-letters", "show")
    call("dead-letters", "drop")
    assert product.dead_letters() == []
    assert "table: alarms_of_today" in call("config")
    assert running.terminate().code == 0
