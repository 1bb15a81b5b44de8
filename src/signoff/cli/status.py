"""`signoff status`: is a run alive, what is in flight, which sink fails."""

from __future__ import annotations

import json
from typing import Any

from signoff.cli.reading import AsJson, PipelineFile, dash, ignored_outcomes, load_for_reading, table
from signoff.terminal import say
from signoff.watch.drawing import events
from signoff.watch.status import read_status
from signoff.watch.status_types import SinkStatus, SourceStatus, Status, WindowStatus

_KEY_VALUES = 5
"""Values of a window's key that are printed; `--json` has more."""


def command(file: PipelineFile, as_json: AsJson = False) -> None:
    """Show whether a run is alive, what each source has in flight, and how each sink is doing."""
    found = read_status(load_for_reading(file))
    if as_json:
        say(json.dumps(found, ensure_ascii=False))
    else:
        print_status(found)


def print_status(found: Status) -> None:
    """For people."""
    alive = f"running (pid {found['pid']}, engine {found['engine'] or 'starting'})"
    say(f"{found['pipeline']}: {alive if found['alive'] else 'not running'}")
    if elsewhere := found["not_run_here_since"]:
        say(f"the state was last used in {elsewhere}, and no run has begun here since; the counts are its")
    counts = ("received", "in_flight", "delivered", "dropped", "dead_lettered", "refused", "expired")
    header = ["source", *(dash(name) for name in counts), "events/s", "intake"]
    rows = [
        [name, *(dict(source)[count] for count in counts), _rate(source["rate"]), _intake(source)]
        for name, source in found["sources"].items()
    ]
    say(table(header, rows, right=header[1:-1]))
    for name, source in found["sources"].items():
        for held in source["held"]:
            say(f"{name} is held back since {held['since']}: {held['reason']}")
        if ignored := source["ignored"]:
            say(f"{name}: {ignored_outcomes(ignored)}")
    for name, account in found["stranded"].items():
        say(
            f"{name} is not in the pipeline any more, and {account['in_flight']} of its events are not "
            "settled: see signoff sources --help"
        )
    rows = [[name, sink["rows"], _health(sink)] for name, sink in found["sinks"].items()]
    say(table(["sink", "rows", "state"], rows, right=["rows"]))
    if found["left_at"]:
        rows = [
            [left["stage"], left["source"], dash(left["outcome"]), left["rows"], left["reason"]]
            for left in found["left_at"]
        ]
        say(table(["left the pipeline at", "source", "outcome", "rows", "reason"], rows, right=["rows"]))
    if found["buffers"]:
        rows = [
            [
                name,
                buffer["sink"] or "-",
                buffer["waiting"],
                "no sink takes these rows" if buffer["orphan"] else "",
            ]
            for name, buffer in found["buffers"].items()
        ]
        say(table(["buffer", "sink", "waiting", ""], rows, right=["waiting"]))
    _print_windows(found["windows"])
    if found["folds"]:
        rows = [
            [name, fold["open_groups"], fold["next_ends_at"] or "-"] for name, fold in found["folds"].items()
        ]
        say(table(["fold", "open groups", "the next ends"], rows, right=["open groups"]))
    if found["dedupes"]:
        rows = [
            [name, step["keys"], step["waiting"], step["waits_for"] or "-"]
            for name, step in found["dedupes"].items()
        ]
        say(
            table(["dedupe", "keys", "duplicates waiting", "for"], rows, right=["keys", "duplicates waiting"])
        )
    _print_jobs(found["jobs"])
    if number := found["dead_letters"]:
        many, them = ("1 dead letter", "it") if number == 1 else (f"{number} dead letters", "them")
        say(f"{many}; signoff dead-letters list FILE shows {them}")
    for sentence in found["waits_for_gone"]:
        say(sentence)


def _print_jobs(jobs: dict[str, Any]) -> None:
    if not jobs:
        return
    header = ["starts runs", "keys waiting", "running", "cooling down", "rows", "runs done", "failed"]
    names = ("waiting", "running", "cooling", "rows", "runs_done", "runs_failed")
    rows = [
        [name, *("-" if counts[each] is None else counts[each] for each in names)]
        for name, counts in jobs.items()
    ]
    say(table(header, rows, right=header[1:]))


def _print_windows(windows: dict[str, WindowStatus]) -> None:
    if not windows:
        return
    rows = [
        [name, window["closed_upto"] or "-", window["events"], window["late"]]
        for name, window in windows.items()
    ]
    say(table(["window", "closed up to", "events in it", "late"], rows, right=["events in it", "late"]))
    for name, window in windows.items():
        for key, counts in window["late_by"].items():
            told = ", ".join(f"{one['value']} ({one['late']})" for one in counts[:_KEY_VALUES])
            more = f" and {len(counts) - _KEY_VALUES} more" if len(counts) > _KEY_VALUES else ""
            say(f"late at {name} by {key}: {told}{more}")


def _intake(source: SourceStatus) -> str:
    state = "held back" if source["held_back"] else source["intake"] or "-"
    return f"{state}: {source['reason']}" if source["reason"] else state


def _rate(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.0f}"


def _health(sink: SinkStatus) -> str:
    if sink["failing_since"]:
        return f"failing since {sink['failing_since']}: {sink['last_error']}"
    state = f"owes {events(sink['owes'])}" if sink["owes"] else "ok"
    return f"{state} (last error: {sink['last_error']})" if sink["last_error"] else state
