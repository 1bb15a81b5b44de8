"""What can be seen of windows: up to where they are closed, and what was late, in all and by each key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from signoff import load
from signoff.cli import app
from signoff.sinks.contract import BatchRef
from signoff.stateful.watermarks import Watermarks
from signoff.transforms.window.watermark_rule import WatermarkRule
from signoff.watch.windows import late_in_all, read_windows

PIPELINE = """
name: alarms
sources:
  incoming: {type: files, path: "./in/*.jsonl"}
transforms:
  by_sensor: {type: window, input: incoming, size: 10m, keys: [station, sensor], aggregates: {n: count(*)}}
  in_all: {type: window, input: incoming, size: 1h, aggregates: {n: count(*)}}
sinks:
  table: {type: sqlite, input: by_sensor, path: ./out.db, table: alarms}
  other: {type: sqlite, input: in_all, path: ./out.db, table: other}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "alarms.yaml"
    path.write_text(PIPELINE)
    return path


@pytest.fixture
def late(file: Path) -> Path:
    marks = Watermarks(file.parent / "state/links/by_sensor.buffer/marks.db", WatermarkRule(0), ("incoming",))
    marks.count_late(BatchRef("incoming", 0, 10), {_keys(1, 121): 2, _keys(2, 121): 3})
    marks.count_late(BatchRef("incoming", 10, 20), {_keys(2, 115): 4})
    marks.reach(1_619_827_200_000_000)
    marks.close_store()
    return file


def _keys(station: int, sensor: int) -> str:
    return json.dumps({"station": station, "sensor": sensor})


def test_late_events_are_counted_in_all_and_by_each_key_the_most_first(late: Path) -> None:
    window = read_windows(load(late))["by_sensor"]
    assert window.late == 9
    assert window.late_by == {"station": [(2, 7), (1, 2)], "sensor": [(121, 5), (115, 4)]}
    assert window.closed_upto == 1_619_827_200


def test_before_the_first_run_nothing_is_closed_and_nothing_late(file: Path) -> None:
    windows = read_windows(load(file))
    assert list(windows) == ["by_sensor", "in_all"]
    assert all(
        (window.closed_upto, window.late, window.late_by) == (None, 0, {}) for window in windows.values()
    )
    assert not (file.parent / "state").exists(), "looking leaves nothing behind"


def test_all_windows_together_by_one_key(late: Path) -> None:
    marks = Watermarks(late.parent / "state/links/in_all.buffer/marks.db", WatermarkRule(0), ("incoming",))
    marks.count_late(BatchRef("incoming", 0, 10), {"{}": 5})
    marks.close_store()
    windows = read_windows(load(late))
    assert windows["in_all"].late == 5
    assert late_in_all(windows, "sensor") == {121: 5, 115: 4}


def test_status_shows_them(late: Path) -> None:
    told = CliRunner().invoke(app, ["status", str(late)]).stdout.splitlines()
    assert "by_sensor  2021-05-01T00:00:00Z             0     9" in told
    assert "in_all     -                                0     0" in told
    assert "late at by_sensor by sensor: 121 (5), 115 (4)" in told


def test_status_as_json_has_them_by_name(late: Path) -> None:
    found = json.loads(CliRunner().invoke(app, ["status", str(late), "--json"]).stdout)
    assert found["windows"]["in_all"] == {
        "closed_upto": None, "closed_upto_seconds": None, "open": False, "events": 0, "late": 0,
        "late_by": {},
    }  # fmt: skip
    assert found["windows"]["by_sensor"] == {
        "closed_upto": "2021-05-01T00:00:00Z",
        "closed_upto_seconds": 1_619_827_200.0,
        "open": False,
        "events": 0,
        "late": 9,
        "late_by": {
            "station": [{"value": 2, "late": 7}, {"value": 1, "late": 2}],
            "sensor": [{"value": 121, "late": 5}, {"value": 115, "late": 4}],
        },
    }
