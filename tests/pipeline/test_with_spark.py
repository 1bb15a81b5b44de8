"""What this room promises about runs: the starter project, a Python file, and checks that need Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark


def call(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=240, check=False
    )


def signoff(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return call("-c", "from signoff.cli import main; main()", *arguments, folder=folder)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    assert signoff("new", "alarms", folder=tmp_path).returncode == 0
    return tmp_path / "alarms"


def account(project: Path, file: str) -> dict[str, int]:
    answer = json.loads(signoff("audit", file, "--json", folder=project).stdout)
    assert answer["balanced"] is True
    found: dict[str, int] = answer["sources"]["incoming"]
    return {name: count for name, count in found.items() if count}


def test_a_new_project_runs_as_it_is(project: Path) -> None:
    run = signoff("run", "pipeline.yaml", "--once", "--quiet", folder=project)
    assert run.returncode == 0, run.stderr
    assert account(project, "pipeline.yaml") == {"received": 40, "delivered": 39, "dead_lettered": 1}


def test_check_reports_what_only_spark_can_find(project: Path) -> None:
    file = project / "pipeline.yaml"
    text = file.read_text().replace("alarmId = 303", "alarmld = 303")
    file.write_text(text.replace("eventTime TIMESTAMP", "eventTime TIMESTAM"))
    check = signoff("check", "pipeline.yaml", folder=project)
    assert check.returncode == 1, check.stderr
    assert "pipeline.yaml:16 [" in check.stdout
    file.write_text(text)
    check = signoff("check", "pipeline.yaml", folder=project)
    assert check.stdout.startswith(
        'pipeline.yaml:21 [unresolved-column] transform "failed_equipment": there is no column "alarmld"'
    )
    assert 'did you mean "alarmId"? there is: stationId, dataPointId, alarmId, ' in check.stdout


FLOW = """\
from signoff import Pipeline

pipeline = Pipeline("flow")
pipeline.source("incoming", "files", path="./in/*.jsonl")
pipeline.transform("parsed", "parse_json", input="incoming", schema="alarmId INT, value DOUBLE")
FACTOR = 2


@pipeline.transform(input="parsed")
def failed(rows):
    return rows.where("alarmId = 303")


@pipeline.transform(input=failed, mode="rows", schema="twice DOUBLE")
def doubled(row):
    return {"twice": row["value"] * FACTOR}


pipeline.sink("out", "files", input=doubled, path="./flow-out", format="jsonl")

if __name__ == "__main__":
    raise SystemExit(pipeline.run(once=True))
"""


def test_a_python_file_runs_itself_with_its_own_functions(project: Path) -> None:
    (project / "flow.py").write_text(FLOW)
    run = call("flow.py", folder=project)
    assert run.returncode == 0, run.stderr
    assert account(project, "flow.py") == {"received": 40, "delivered": 10, "dropped": 29, "dead_lettered": 1}
    (written,) = (project / "flow-out").glob("*.jsonl")
    rows = [json.loads(line) for line in written.read_text(encoding="utf-8").splitlines()]
    assert {"event_id": "incoming/0", "twice": 8.4} in rows
    assert len(rows) == 10
