"""The state of a pipeline in one moment, as `signoff status --json` and the metrics say it.

Read from what is durable (ledger, dead letters, logs) and from what the processes of a run say of themselves,
by anybody, during a run, after it, and before there was any.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from signoff.clock import when
from signoff.engine.state_dir.buffers import read_buffers
from signoff.engine.state_dir.copies import last_used_elsewhere
from signoff.engine.state_dir.giving_up import stranded
from signoff.engine.state_dir.removed_nodes import what_is_gone
from signoff.invoker.lookup import invocations
from signoff.ledger import DeadLetters, Ledger, RunLock
from signoff.ledger.stage_totals import StageTotal
from signoff.log import LogReader
from signoff.pipeline.graph import Graph
from signoff.watch.dedupes import read_dedupes, waits_in_vain
from signoff.watch.folds import Fold, read_folds
from signoff.watch.status_types import (
    FoldStatus,
    HeldBack,
    LeftAt,
    SinkStatus,
    SourceStatus,
    Status,
    WindowStatus,
)
from signoff.watch.windows import Window, read_windows


def read_status(graph: Graph) -> Status:
    """All of it, as `--json` prints it."""
    state = graph.state
    pid = RunLock(state).held_by()
    with (
        Ledger(state / "ledger.db", readonly=True) as ledger,
        DeadLetters(state / "dead_letters.db", readonly=True) as letters,
        ledger.snapshot(),
    ):
        gone, left = what_is_gone(graph, ledger, letters), stranded(graph, ledger)
        elsewhere = last_used_elsewhere(state, ledger)
        # What processes have said of themselves in another place is not of this one.
        engine = {} if elsewhere else _read_json(state / "engine.json")
        owed = ledger.events_owed()
        return {
            "pipeline": graph.name,
            "alive": pid is not None,
            "pid": pid,
            "not_run_here_since": elsewhere,
            "engine": engine.get("state") if pid is not None else None,
            "sources": {
                name: _source(state, name, ledger, engine, pid is not None, bool(elsewhere))
                for name in graph.sources
            },
            "stranded": {name: account.as_dict() for name, account in left.items()},
            "sinks": {name: _sink(name, ledger, owed.get(name, 0), bool(elsewhere)) for name in graph.sinks},
            "left_at": [_departure(departure) for departure in ledger.departures()],
            "buffers": {name: buffer.as_dict() for name, buffer in read_buffers(graph, ledger).items()},
            "windows": {name: _window(window) for name, window in read_windows(graph, ledger).items()},
            "folds": {name: _fold(fold) for name, fold in read_folds(graph).items()},
            "dedupes": {name: asdict(step) for name, step in read_dedupes(graph, ledger).items()},
            "jobs": invocations(graph),
            "dead_letters": letters.count(),
            "gone": gone.as_dict(),
            "waits_for_gone": [*gone.sentences(), *waits_in_vain(graph, ledger, left)],
        }


def _source(
    state: Path, name: str, ledger: Ledger, engine: dict[str, Any], alive: bool, elsewhere: bool
) -> SourceStatus:
    books, log = ledger.books(name), LogReader(state / "log" / name)
    account = books.account(log.head())
    intake = {} if elsewhere else _read_json(state / "intake" / name / "status.json")
    oldest = _oldest(log, ledger.settled_upto(name)) if account.in_flight else None
    rates = engine.get("rates")
    held = _held(name, engine, intake) if alive else []
    return {
        "received": account.received,
        "in_flight": account.in_flight,
        "delivered": account.delivered,
        "dropped": account.dropped,
        "dead_lettered": account.dead_lettered,
        "refused": account.refused,
        "expired": account.expired,
        "oldest_in_flight": when(oldest),
        "oldest_in_flight_seconds": _ago(oldest),
        "ignored": books.ignored,
        "rate": rates.get(name) if alive and isinstance(rates, dict) else None,
        "intake": intake.get("state") if alive else None,
        "held_back": bool(held) or (alive and intake.get("state") == "held"),
        "held": held,
        "reason": intake.get("reason", "") if alive or intake.get("state") == "failed" else "",
    }


def _oldest(log: LogReader, sequence: int) -> float | None:
    """When the first event that is not settled was received."""
    event = log.lookup([sequence]).get(sequence, {})
    received: datetime | None = event.get("received_at")
    return None if received is None else received.timestamp()


def _held(name: str, engine: dict[str, Any], intake: dict[str, Any]) -> list[HeldBack]:
    """By whom the source is held back, why, and since when."""
    found = engine.get("held") or {}
    by_engine = found.get(name) if isinstance(found, dict) and engine.get("state") != "stopped" else None
    held = []
    if intake.get("held_because"):
        held.append(_held_by("intake", intake["held_because"], intake["held_since"]))
    if by_engine:
        held.append(_held_by("engine", by_engine["reason"], by_engine["since"]))
    return held


def _held_by(who: str, reason: str, since: float | None) -> HeldBack:
    return {"by": who, "reason": reason, "since": when(since), "seconds": _ago(since) or 0.0}


def _ago(moment: float | None) -> float | None:
    """How long ago a time of day was; never less than nothing, whatever the clock was set to."""
    return None if moment is None else round(max(time.time() - moment, 0.0), 3)


def _departure(departure: StageTotal) -> LeftAt:
    return {
        "source": departure.source,
        "stage": departure.stage,
        "outcome": departure.outcome.value,
        "reason": departure.reason,
        "rows": departure.rows,
    }


def _window(window: Window) -> WindowStatus:
    return {
        "closed_upto": when(window.closed_upto),
        "closed_upto_seconds": window.closed_upto,
        "open": window.is_open,
        "events": window.events,
        "late": window.late,
        "late_by": {
            key: [{"value": value, "late": number} for value, number in counts]
            for key, counts in window.late_by.items()
        },
    }


def _fold(fold: Fold) -> FoldStatus:
    return {"open_groups": fold.open_groups, "next_ends_at": when(fold.next_ends_at)}


def _sink(name: str, ledger: Ledger, owes: int, elsewhere: bool) -> SinkStatus:
    totals = ledger.sink_totals().get(name)
    heard = totals if not elsewhere else None
    return {
        "rows": totals.rows if totals else 0,
        "owes": owes,
        "failing_since": when(heard.failing_since) if heard else None,
        "failing_seconds": _ago(heard.failing_since) if heard else None,
        "last_error": heard.error if heard else "",
    }


def _read_json(path: Path) -> dict[str, Any]:
    """What a process has written about itself; {} while there is nothing."""
    try:
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
