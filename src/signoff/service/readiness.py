"""Whether a run has come up: its engine has its session, and every source receives. Read from what they say
of themselves, and believed only of processes that this very run has started."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from signoff.intake.status import read_status
from signoff.pipeline.graph import Graph
from signoff.service.run_process import RunProcess, parent


def why_not_ready(graph: Graph, run: RunProcess | None) -> str:
    """What is not up yet; '' if all of it is."""
    if run is None:
        return "there is no run"
    engine = _said(graph.state / "engine.json")
    if parent(int(engine.get("pid") or 0)) != run.pid or engine.get("state") != "running":
        return "the engine is starting"  # or has just found that it cannot
    for name in graph.sources:
        said = read_status(graph.state / "intake" / name)
        if said is None or parent(said.pid) != run.pid:
            return f'source "{name}" is starting'
        if said.state == "failed":
            return f'source "{name}" has failed: {said.reason}'
    return ""


def processes_of(graph: Graph, run: RunProcess | None) -> dict[str, int]:
    """The processes of a run that are up, by name."""
    if run is None:
        return {}
    found = {"engine": int(_said(graph.state / "engine.json").get("pid") or 0)}
    for name in graph.sources:
        said = read_status(graph.state / "intake" / name)
        found[f"intake {name}"] = said.pid if said else 0
    return {"run": run.pid, **{name: pid for name, pid in found.items() if pid and parent(pid) == run.pid}}


def _said(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
