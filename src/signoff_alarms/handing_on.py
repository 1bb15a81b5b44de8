"""Who gets the reports: sinks of the installation, in HOME/notify.yaml, which each analysis' job then has.

None by default. They get reports that a schedule or an alert has asked for; who runs `report` has the files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from signoff.errors import SignoffError

FILE = "notify.yaml"
PARAMETER = "notify"
"""Of a job with such sinks: whether they get the report of this run."""
_STEP = "to_notify"
_WHAT = (
    "{{ title }}, {{ period_from[:10] }}"
    "{% if parameters.station %}, station {{ parameters.station }}{% endif %}"
)
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "email": {
        "subject": _WHAT,
        "text": "{{ title }}\n\n{% for name, fact in about.items() %}{{ name }}: {{ fact }}\n{% endfor %}",
        "attachments": [{"column": "files"}],
    },
    "slack": {"text": f"*{_WHAT}*: {{{{ paths.html }}}}"},
}
_TAKEN = frozenset({"report", _STEP})

Notify = Annotated[
    Path | None,
    typer.Option(
        help="YAML with sinks that get each report of a schedule or an alert, by name, without their input: "
        "{desk: {type: email, host: …, from: …, to: …}}. Kept as HOME/notify.yaml until another is given.",
        show_default="those of HOME/notify.yaml, if it is there",
    ),
]


def keep(home: Path, notify: Path | None) -> None:
    """Have these sinks from now on. Raises SignoffError."""
    if notify is not None:
        _read(notify)
        text = notify.read_text(encoding="utf-8")  # as it stands: secrets are named in it, and not known here
        aside = home / f".{FILE}.part"
        aside.write_text(text, encoding="utf-8")
        aside.replace(home / FILE)


def sinks(home: Path) -> dict[str, dict[str, Any]]:
    """The sinks that get the reports, whole. Raises SignoffError."""
    file = home / FILE
    found = _read(file) if file.is_file() else {}
    return {
        name: {**_DEFAULTS.get(str(fields.get("type")), {}), **fields, "input": _STEP}
        for name, fields in found.items()
    }


def parameters(sinks: Mapping[str, Any]) -> dict[str, Any]:
    """Those that a job has because of them."""
    return {PARAMETER: {"type": "boolean", "default": True}} if sinks else {}


def added(text: str, sinks: Mapping[str, Any]) -> str:
    """The text of a job, which ends with its sinks, with these as well."""
    if not sinks:
        return text
    step = {"type": "filter", "input": "report", "where": f"parameters['{PARAMETER}'] = 'true'"}
    before, found, after = text.partition("\nsinks:\n")
    assert found and "\ntransforms:\n" in before
    lines = [f"  {name}: {json.dumps(fields, ensure_ascii=False)}\n" for name, fields in sinks.items()]
    return f"{before}  {_STEP}: {json.dumps(step)}\n{found}{after}" + "".join(lines)


def _read(file: Path) -> dict[str, dict[str, Any]]:
    try:
        found: dict[str, dict[str, Any]] = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise SignoffError(f"{file} cannot be read: {error}") from error
    whole = isinstance(found, dict) and all(isinstance(fields, dict) for fields in found.values())
    if not whole or not found or any("type" not in fields for fields in found.values()):
        raise SignoffError(f"{file} has no sinks by name, each with its type and fields")
    if wrong := next((name for name in found if name in _TAKEN or not isinstance(name, str)), None):
        raise SignoffError(f"{file}: a sink may not be called {wrong!r}")
    return found
