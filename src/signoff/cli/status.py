"""`signoff status`: is a run alive, what is in flight, which sink fails."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from signoff.cli.reading import AsJson, PipelineFile, dash, load_for_reading, table, when
from signoff.engine.buffers import read_buffers
from signoff.engine.giving_up import stranded
from signoff.engine.gone import what_is_gone
from signoff.ledger import DeadLetters, Ledger, RunLock
from signoff.ledger.departures import Departure
from signoff.log import LogReader
from signoff.pipeline.graph import Graph
from signoff.watch.dedupes import read_dedupes
from signoff.watch.folds import Fold, read_folds
from signoff.watch.windows import Window, read_windows

_KEY_VALUES = 5
"""Values of a window's key that are printed; `--json` has more."""


def command(file: PipelineFile, as_json: AsJson = False) -> None:
    """Show whether a run is alive, what each source has in flight, and how each sink is doing."""
    found = read_status(load_for_reading(file))
    if as_json:
        typer.echo(json.dumps(found, ensure_ascii=False))
    else:
        _print(found)


def read_status(graph: Graph) -> dict[str, Any]:
    """All of it, as `--json` prints it."""
    state = graph.state
    pid = RunLock(state).held_by()
    engine = _read_json(state / "engine.json")
    with (
        Ledger(state / "ledger.db", readonly=True) as ledger,
        DeadLetters(state / "dead_letters.db", readonly=True) as letters,
        ledger.snapshot(),
    ):
        gone = what_is_gone(graph, ledger, letters)
        return {
            "pipeline": graph.name,
            "alive": pid is not None,
            "pid": pid,
            "engine": engine.get("state") if pid is not None else None,
            "sources": {
                name: _source(state, name, ledger, engine, pid is not None) for name in graph.sources
            },
            "stranded": {name: account.as_dict() for name, account in stranded(graph, ledger).items()},
            "sinks": {name: _sink(name, ledger) for name in graph.sinks},
            "left_at": [_departure(departure) for departure in ledger.departures()],
            "buffers": {name: buffer.as_dict() for name, buffer in read_buffers(graph, ledger).items()},
            "windows": {name: _window(window) for name, window in read_windows(graph).items()},
            "folds": {name: _fold(fold) for name, fold in read_folds(graph).items()},
            "dedupes": {name: asdict(step) for name, step in read_dedupes(graph, ledger).items()},
            "dead_letters": letters.count(),
            "gone": gone.as_dict(),
            "waits_for_gone": gone.sentences(),
        }


def _source(state: Path, name: str, ledger: Ledger, engine: dict[str, Any], alive: bool) -> dict[str, Any]:
    books = ledger.books(name)
    account = books.account(LogReader(state / "log" / name).head())
    intake = _read_json(state / "intake" / name / "status.json")
    rates = engine.get("rates")
    held = _held(name, engine, intake) if alive else []
    return {
        **account.as_dict(),
        "ignored": books.ignored,
        "rate": rates.get(name) if alive and isinstance(rates, dict) else None,
        "intake": intake.get("state") if alive else None,
        "held_back": bool(held) or (alive and intake.get("state") == "held"),
        "held": held,
        "reason": intake.get("reason", "") if alive or intake.get("state") == "failed" else "",
    }


def _held(name: str, engine: dict[str, Any], intake: dict[str, Any]) -> list[dict[str, Any]]:
    """By whom the source is held back, why, and since when."""
    found = engine.get("held") or {}
    by_engine = found.get(name) if isinstance(found, dict) and engine.get("state") != "stopped" else None
    held = []
    if intake.get("held_because"):
        held.append({"by": "intake", "reason": intake["held_because"], "since": when(intake["held_since"])})
    if by_engine:
        held.append({"by": "engine", "reason": by_engine["reason"], "since": when(by_engine["since"])})
    return held


def _departure(departure: Departure) -> dict[str, Any]:
    return {
        "source": departure.source,
        "stage": departure.stage,
        "outcome": departure.outcome.value,
        "reason": departure.reason,
        "rows": departure.rows,
    }


def _window(window: Window) -> dict[str, Any]:
    return {
        "closed_upto": when(window.closed_upto),
        "late": window.late,
        "late_by": {
            key: [{"value": value, "late": number} for value, number in counts]
            for key, counts in window.late_by.items()
        },
    }


def _fold(fold: Fold) -> dict[str, Any]:
    return {"open_groups": fold.open_groups, "next_ends_at": when(fold.next_ends_at)}


def _sink(name: str, ledger: Ledger) -> dict[str, Any]:
    totals = ledger.sink_totals().get(name)
    return {
        "rows": totals.rows if totals else 0,
        "failing_since": when(totals.failing_since) if totals else None,
        "last_error": totals.error if totals else "",
    }


def _print(found: dict[str, Any]) -> None:
    alive = f"running (pid {found['pid']}, engine {found['engine'] or 'starting'})"
    typer.echo(f"{found['pipeline']}: {alive if found['alive'] else 'not running'}")
    counts = ("received", "in_flight", "delivered", "dropped", "dead_lettered", "refused", "expired")
    header = ["source", *(dash(name) for name in counts), "events/s", "intake"]
    rows = [
        [name, *(source[count] for count in counts), _rate(source["rate"]), _intake(source)]
        for name, source in found["sources"].items()
    ]
    typer.echo(table(header, rows, right=header[1:-1]))
    for name, source in found["sources"].items():
        for held in source["held"]:
            typer.echo(f"{name} is held back since {held['since']}: {held['reason']}")
        if ignored := source["ignored"]:
            typer.echo(f"{name}: {ignored} outcomes came for events settled already, and were ignored")
    for name, account in found["stranded"].items():
        typer.echo(
            f"{name} is not in the pipeline any more, and {account['in_flight']} of its events are not "
            "settled: see signoff sources --help"
        )
    rows = [[name, sink["rows"], _health(sink)] for name, sink in found["sinks"].items()]
    typer.echo(table(["sink", "rows", "state"], rows, right=["rows"]))
    if found["left_at"]:
        rows = [
            [left["stage"], left["source"], dash(left["outcome"]), left["rows"], left["reason"]]
            for left in found["left_at"]
        ]
        typer.echo(
            table(["left the pipeline at", "source", "outcome", "rows", "reason"], rows, right=["rows"])
        )
    if found["buffers"]:
        rows = [
            [
                name,
                buffer["sink"] or "-",
                buffer["waiting"],
                "nobody takes these rows" if buffer["orphan"] else "",
            ]
            for name, buffer in found["buffers"].items()
        ]
        typer.echo(table(["buffer", "sink", "waiting", ""], rows, right=["waiting"]))
    _print_windows(found["windows"])
    if found["folds"]:
        rows = [
            [name, fold["open_groups"], fold["next_ends_at"] or "-"] for name, fold in found["folds"].items()
        ]
        typer.echo(table(["fold", "open groups", "the next ends"], rows, right=["open groups"]))
    if found["dedupes"]:
        rows = [
            [name, step["keys"], step["waiting"], step["waits_for"] or "-"]
            for name, step in found["dedupes"].items()
        ]
        typer.echo(
            table(["dedupe", "keys", "duplicates waiting", "for"], rows, right=["keys", "duplicates waiting"])
        )
    if found["dead_letters"]:
        typer.echo(f"{found['dead_letters']} dead letters; signoff dead-letters list FILE shows them")
    for sentence in found["waits_for_gone"]:
        typer.echo(sentence)


def _print_windows(windows: dict[str, Any]) -> None:
    if not windows:
        return
    rows = [[name, window["closed_upto"] or "-", window["late"]] for name, window in windows.items()]
    typer.echo(table(["window", "closed up to", "late"], rows, right=["late"]))
    for name, window in windows.items():
        for key, counts in window["late_by"].items():
            told = ", ".join(f"{one['value']} ({one['late']})" for one in counts[:_KEY_VALUES])
            more = f" and {len(counts) - _KEY_VALUES} more" if len(counts) > _KEY_VALUES else ""
            typer.echo(f"late at {name} by {key}: {told}{more}")


def _intake(source: dict[str, Any]) -> str:
    state = "held back" if source["held_back"] else source["intake"] or "-"
    return f"{state}: {source['reason']}" if source["reason"] else state


def _rate(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.0f}"


def _health(sink: dict[str, Any]) -> str:
    if sink["failing_since"]:
        return f"failing since {sink['failing_since']}: {sink['last_error']}"
    return f"ok (last error: {sink['last_error']})" if sink["last_error"] else "ok"


def _read_json(path: Path) -> dict[str, Any]:
    """What a process has written about itself; {} while there is nothing."""
    try:
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
