"""Every pipeline that docs/deploy.md and docs/migrate.md show is right, and so is the service unit."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from signoff.cli.check import _checked
from signoff.testing import run_pipeline

DOCS = Path(__file__).parents[2] / "docs"
_BLOCK = re.compile(r"^```(yaml|python) pipeline\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHOWN = [
    pytest.param(kind, text, id=f"{page}-{number}")
    for page in ("deploy.md", "migrate.md")
    for number, (kind, text) in enumerate(_BLOCK.findall((DOCS / page).read_text(encoding="utf-8")), 1)
]


def test_both_pages_show_pipelines() -> None:
    assert len(SHOWN) == 6


@pytest.mark.parametrize(("kind", "text"), SHOWN)
def test_a_pipeline_that_is_shown_has_no_problem_and_no_warning(
    kind: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RABBITMQ_URL", "amqp://user:password@broker.example/")
    monkeypatch.setenv("DATABASE_URL", "postgresql://user:password@database.example/alarms")
    file = tmp_path / {"yaml": "pipeline.yaml", "python": "pipeline.py"}[kind]
    file.write_text(text, encoding="utf-8")
    graph, problems = _checked(file, spark=False)
    assert [str(problem) for problem in problems] == []
    assert graph is not None
    assert [str(warning) for warning in graph.warnings] == []


@pytest.mark.parametrize("page", ["docs/deploy.md", "README.md"])
def test_the_service_unit_gives_a_run_the_time_to_finish(page: str) -> None:
    text = (DOCS.parent / page).read_text(encoding="utf-8")
    drained = (
        float(found[1]) if (found := re.search(r"^ExecStart=.* --drain-seconds (\d+)", text, re.M)) else 30
    )
    stopped = re.search(r"^TimeoutStopSec=(\d+)", text, re.M)
    assert stopped is not None
    assert float(stopped[1]) >= drained + 30
    assert "RestartPreventExitStatus=2\nKillMode=mixed\n" in text


@pytest.mark.spark
def test_the_patterns_that_are_shown_take_both_kinds_of_lines_apart(spark: Any, tmp_path: Path) -> None:
    page = (DOCS / "pipeline.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^```yaml\n(transforms:\n  requests:\n.*?)^```$", page, re.MULTILINE | re.DOTALL)
    file = tmp_path / "pipeline.yaml"
    around = (
        "name: logs\nsources: {incoming: {type: stdin}}\nsinks: {out: {type: console, input: requests}}\n"
    )
    file.write_text(around + shown, encoding="utf-8")
    of_nginx = '203.0.113.7 - - [18/Nov/2026:14:03:12 +0100] "GET / HTTP/1.1" 200 12 "-" "curl/8"'
    result = run_pipeline(file, {"incoming": [of_nginx, "web1 is on fire"]}, spark=spark)
    assert result.letters == []
    first, second = sorted(result.rows["out"], key=lambda row: row["client"])
    at = datetime(2026, 11, 18, 13, 3, 12, tzinfo=UTC)
    wanted = {"client": "203.0.113.7", "timestamp": at, "status": 200, "message": None}
    assert {name: first[name] for name in wanted} == wanted
    assert (second["client"], second["message"]) == ("web1", "is on fire")
    assert second["timestamp"] is None and second["status"] is None
