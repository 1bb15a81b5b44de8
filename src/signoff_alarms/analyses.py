"""The analyses of a day or another period, as files of jobs: what each does stands in `jobs/*.yaml`.

As with pipelines, a file that is written here names in its first lines what differs from one installation
to the next: where the results are, how long windows are, which forms of a report can be made here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from signoff.errors import SignoffError
from signoff_alarms import handing_on, storage
from signoff_alarms import pipeline as pipelines


class Analysis(StrEnum):
    """What can be asked."""

    PART_OF_DAY = "part_of_day"
    REPEATED_FAILURES = "repeated_failures"
    BUSY_WINDOWS = "busy_windows"
    BATTERY_LOW_VOLTAGE = "battery_low_voltage"
    VOLTAGE_AND_FAILURES = "voltage_and_failures"


_FIRST_LINE = "# Written by python -m signoff_alarms; signoff jobs run|list|show|schedule take this file."
_PARAMETERS: Mapping[str, Any] = {
    "from": "timestamp",
    "to": "timestamp",
    "station": {"type": "bigint", "default": None},
    "out": {"type": "string", "default": "."},
}
_NEEDED_TO: Mapping[str, Any] = {"needed_to": {"type": "timestamp", "default": None}}
"""Up to where the failures must be known. It does not say which run it is: one that waits is done once."""
_MOST_ROWS = 1_000_000
"""Of a report: a sheet of XLSX holds little more."""
_DAILY: Mapping[str, Any] = {
    "cron": "0 6 * * *",
    "timezone": "UTC",
    "catch_up": "all",
    "parameters": {
        "from": "{start:%Y-%m-%d}T00:00:00Z",
        "to": "{end:%Y-%m-%d}T00:00:00Z",
        "out": "{start:%Y-%m-%d}",
    },
}
"""The day before, six hours after its end: late alarms have come by then."""


@dataclass(frozen=True)
class Home:
    """Directory of a run of the application."""

    path: Path

    @property
    def file(self) -> Path:
        return self.path / "pipeline.yaml"

    def settings(self) -> dict[str, Any]:
        """What the pipeline there says of itself. Raises SignoffError where there is none."""
        if not self.file.is_file():
            raise SignoffError(
                f"{self.path} holds no alarms: there is no {self.file.name}; "
                f"python -m signoff_alarms run --home {self.path} makes one"
            )
        found = yaml.safe_load(self.file.read_text(encoding="utf-8"))
        if not isinstance(found, dict) or not {"x-storage", "x-window_seconds"} <= found.keys():
            raise SignoffError(
                f"{self.file} does not say where results are and how long windows: it is of another one, "
                "or of an earlier version; python -m signoff_alarms run writes it anew"
            )
        return found

    def prepare(self, postgres: str | None) -> dict[str, Any]:
        """The settings, once the tables that analyses read are there."""
        found = self.settings()
        if found["x-storage"]["type"] == "postgres":
            if postgres is None:
                raise SignoffError(
                    f"the results of {self.path} are in PostgreSQL; say where with --postgres or "
                    f"{pipelines.POSTGRES}"
                )
            storage.in_postgres(postgres)
        else:
            database = self.path / found["x-storage"]["path"]
            if not database.is_file():
                raise SignoffError(
                    f"{self.path} has no results yet: there is no {database}; "
                    f"python -m signoff_alarms run --home {self.path} makes them"
                )
            storage.in_sqlite(database)
        return found


def write(home: Home, analysis: Analysis, settings: Mapping[str, Any]) -> Path:
    """The file of a job, `jobs/<analysis>.yaml` in the home. Raises SignoffError when another's is there."""
    file = home.path / "jobs" / f"{analysis}.yaml"
    if file.exists() and not file.read_text(encoding="utf-8").startswith(_FIRST_LINE):
        raise SignoffError(f"{file} exists and was not written by this command; move it away first")
    file.parent.mkdir(parents=True, exist_ok=True)
    told = handing_on.sinks(home.path)
    text = _head(analysis, settings, handing_on.parameters(told)) + handing_on.added(_shipped(analysis), told)
    if not file.exists() or file.read_text(encoding="utf-8") != text:
        file.write_text(text, encoding="utf-8")
    return file


def forms() -> list[str]:
    """The forms of a report that can be made here: two of them need libraries that are an extra."""
    libraries = {"pdf": "reportlab", "xlsx": "xlsxwriter"}
    return ["json", "html", *(form for form, library in libraries.items() if find_spec(library))]


def _head(analysis: Analysis, settings: Mapping[str, Any], more: Mapping[str, Any]) -> str:
    lengths = {f"{name}_s": seconds for name, seconds in settings["x-window_seconds"].items()}
    parameters = {
        **_PARAMETERS,
        **more,
        **_NEEDED_TO,
        **{name: {"type": "int", "default": seconds} for name, seconds in lengths.items()},
    }
    stored = settings["x-storage"]
    table = (
        {"type": "table", "url": stored["url"]}
        if stored["type"] == "postgres"
        else {"type": "table", "path": f"../{stored['path'].removeprefix('./')}"}
    )
    report = {
        "type": "report",
        "path": f"../reports/${{out}}/{analysis}",
        "formats": forms(),
        "max_rows": _MOST_ROWS,
    }
    said = {
        "name": str(analysis),
        "state": f"./state/{analysis}",
        "parameters": parameters,
        "key": list(_PARAMETERS),
        "period": ["from", "to"],
        "schedule": _DAILY,
    }
    lines = [_FIRST_LINE, *(f"{name}: {json.dumps(value)}" for name, value in said.items())]
    lines += [f"x-storage: &storage {json.dumps(table)}", f"x-report: &report {json.dumps(report)}"]
    return "\n".join(lines) + "\n"


def _shipped(analysis: Analysis) -> str:
    place = resources.files("signoff_alarms").joinpath("jobs", f"{analysis}.yaml")
    return place.read_text(encoding="utf-8")
