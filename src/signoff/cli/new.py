"""`signoff new DIR`: a small project that runs as it is, or (`--plugin`) a package with a type of its own."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Annotated, Literal

import typer

from signoff.cli import new_plugin

PIPELINE = """\
# Base-station alarms: all of them to an archive, failed equipment to a table.
# Every field is explained by `signoff describe TYPE`.
name: {name}
state: ./state                 # log, ledger, checkpoints, dead letters

sources:
  incoming:
    type: files
    path: ./in/*.jsonl
    on_acknowledge: keep       # keep | move | delete

transforms:
  parsed:
    type: parse_json
    input: incoming
    schema: "stationId BIGINT, dataPointId INT, alarmId INT, eventTime TIMESTAMP, value DOUBLE, \
valueThreshold DOUBLE, isActive BOOLEAN"
    timestamp_format: "yyyy-MM-dd HH:mm:ss z"
  failed_equipment:
    type: filter
    input: parsed
    where: alarmId = 303

sinks:
  archive:
    type: files
    input: parsed
    path: ./out/archive
    format: jsonl
  table:
    type: sqlite
    input: failed_equipment
    path: ./out/alarms.db
    table: failed_equipment
    retry: {{attempts: 5, initial_ms: 100, max_ms: 5000}}
    on_failure: dead_letter    # dead_letter | refuse | drop

tests:                         # signoff test pipeline.yaml
  failed equipment goes to the table and a broken line is a dead letter:
    given:
      incoming:
        - {{stationId: 1, alarmId: 303, eventTime: 2021-05-01 10:00:00 UTC, value: 4.2}}
        - {{stationId: 2, alarmId: 304, eventTime: 2021-05-01 10:01:00 UTC, value: 4.5}}
        - '{{"stationId": 3, "alar'
    expect:
      archive: 2
      table: [{{stationId: 1, value: 4.2}}]
    letters: [{{stage: parsed, reason: not valid JSON}}]
"""

README = """\
# {name}

A Signoff pipeline. `in/alarms.jsonl` holds {count} alarms, one of
them malformed.

    signoff check pipeline.yaml               # is it right?
    signoff graph pipeline.yaml               # what does it look like?
    signoff test pipeline.yaml                # does it do what it should?
    signoff run pipeline.yaml --once          # process what is there, settle it, stop
    signoff audit pipeline.yaml               # what became of every event
    signoff dead-letters list pipeline.yaml   # what could not be processed, and why

The results are in `out/`. Without `--once` the run goes on and takes every file that is moved into `in/`.
"""

GITIGNORE = "state/\nout/\n"
ALARMS = 40


Kind = Literal["source", "sink", "transform"]


def command(
    directory: Annotated[Path, typer.Argument(help="Where to write it; made if it does not exist.")],
    plugin: Annotated[
        Kind | None,
        typer.Option("--plugin", help="Write a package with a new type instead."),
    ] = None,
) -> None:
    """Write a starter project that runs as it is.

    A pipeline, some input and a README. With --plugin: a Python package that brings a source, sink or
    transform, named after the directory, with tests that it passes.
    """
    if plugin is not None:
        _check_type(new_plugin.type_name(directory), directory, plugin)
    try:
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise typer.BadParameter(f"{directory} exists and is not empty; nothing was written")
        if plugin is None:
            _write(directory)
        else:
            new_plugin.write(plugin, new_plugin.type_name(directory), directory)
    except OSError as error:
        raise typer.BadParameter(f"cannot write to {directory}: {error.strerror}") from None
    then = "signoff run pipeline.yaml --once" if plugin is None else 'pip install -e ".[test]" && pytest'
    typer.echo(f"{directory} is ready. Next:\n  cd {shlex.quote(str(directory))}\n  {then}")


def _check_type(name: str, directory: Path, kind: Kind) -> None:
    if not name:
        raise typer.BadParameter(
            f"{directory.name} gives no name for a type: begin it with a letter; use a to z, digits, - and _"
        )
    from signoff.catalog import default

    catalog = default()
    if name in {"source": catalog.sources, "sink": catalog.sinks, "transform": catalog.transforms}[kind]:
        raise typer.BadParameter(f'"{name}" is a {kind} of Signoff itself; call yours something else')


def _write(directory: Path) -> None:
    name = _name(directory)
    files = {
        "pipeline.yaml": PIPELINE.format(name=name),
        "README.md": README.format(name=name, count=ALARMS),
        ".gitignore": GITIGNORE,
        "in/alarms.jsonl": alarms(),
    }
    for relative, text in files.items():
        path = directory / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def alarms() -> str:
    """The sample input; the last line is cut off, as a crashed writer leaves it."""
    lines = []
    for index in range(ALARMS):
        alarm = {
            "stationId": 1 + index % 5,
            "dataPointId": 1 + index % 3,
            "alarmId": 303 if index % 4 == 0 else 304,
            "eventTime": f"2021-05-01 10:{index:02d}:00 UTC",
            "value": round(4.2 + index * 0.35, 2),
            "valueThreshold": 10.0,
            "isActive": index % 7 != 0,
        }
        lines.append(json.dumps(alarm))
    lines[-1] = lines[-1][:50]
    return "\n".join(lines) + "\n"


def _name(directory: Path) -> str:
    name = re.sub(r"[^A-Za-z0-9_]+", "_", directory.resolve().name).strip("_")
    return name if re.match(r"[A-Za-z]", name) else "alarms"
