"""What a report says of itself when it is published: the row that sinks get which name it as their input.

Invariants: the row of a run is the same however often it is asked for, and names the run, so that a report
that is made anew is another one; a file in it is known by its checksum, and not by its path alone, where the
next report will be.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from signoff.reports import Report
from signoff.sinks.contract import RunRef


def _map_of(kind: str) -> dict[str, Any]:
    return {"type": "map", "keyType": "string", "valueType": kind, "valueContainsNull": True}


def _struct(**fields: Any) -> dict[str, Any]:
    kinds = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in fields.items()]
    return {"type": "struct", "fields": kinds}


_FILE = _struct(format="string", name="string", path="string", bytes="long", sha256="string")
COLUMNS = json.dumps(
    _struct(
        name="string",
        title="string",
        about=_map_of("string"),
        run="string",
        key="string",
        parameters=_map_of("string"),
        period_from="timestamp",
        period_to="timestamp",
        complete_to="string",
        began_at="timestamp",
        rows="long",
        paths=_map_of("string"),
        files={"type": "array", "elementType": _FILE, "containsNull": True},
    )
)
"""The columns of the row, as Spark writes a schema in JSON."""


def edition_row(name: str, report: Report, run: RunRef, paths: Mapping[str, Path]) -> dict[str, Any]:
    """The row, with values as in JSON. `paths`: by format. Raises OSError."""
    return {
        "name": name,
        "title": report.title,
        "about": dict(report.about),
        "run": run.id,
        "key": run.key,
        "parameters": {each: _text(value) for each, value in run.parameters.items()},
        "period_from": _moment(run.period[0]),
        "period_to": _moment(run.period[1]),
        "complete_to": run.complete_to,
        "began_at": _moment(run.began_at),
        "rows": sum(table.num_rows for table in report.inputs.values()),
        "paths": {form: str(path) for form, path in paths.items()},
        "files": [_file(form, path) for form, path in paths.items()],
    }


def _file(form: str, path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    return {"format": form, "name": path.name, "path": str(path), "bytes": len(content), "sha256": digest}


def _moment(value: datetime | None) -> str | None:
    return None if value is None else f"{value.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, datetime):
        return _moment(value)
    return value.isoformat() if isinstance(value, date) else json.dumps(value)
