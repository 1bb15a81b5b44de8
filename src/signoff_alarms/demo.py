"""`python -m signoff_alarms.demo`: 60,000 alarms through the application, with an alarm desk that fails.

It calls the same `signoff run FILE --once` as a user would, and holds the result against the sinks
themselves. Exits with 0 only if the account balances, every sink holds what it signed for, and every alarm
that a window was to count is in one of its results, or late, or a dead letter.
"""

from __future__ import annotations

import re
import shutil
import sys
import time
from collections import Counter
from pathlib import Path

from signoff import cli, load
from signoff.errors import SignoffError
from signoff.ledger import DeadLetters, Ledger, RunLock
from signoff.ledger.audit import Audit, audit
from signoff.log import LogReader
from signoff.pipeline.graph import Graph
from signoff.watch.windows import late_in_all, read_windows
from signoff_alarms import demo_report
from signoff_alarms import pipeline as pipelines
from signoff_alarms.desk import Desk
from signoff_alarms.narrator import narrator, say
from signoff_alarms.results import COUNTED, Results

HOME = Path("demo-run")
FILE = HOME / "pipeline.yaml"
COUNT = 60_000
SOON = {"config": {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}}
"""Java does not optimise what runs for a minute only: sooner started, slower afterwards."""
RATE = 1_500
"""Simulated alarms a second."""
CLOSES_AFTER = 20
CLOSED_S = 8.0


def main() -> int:
    began = time.monotonic()
    try:
        _fresh_home()
        return _demo(began)
    except SignoffError as error:
        say(str(error))
        return 1


def _demo(began: float) -> int:
    say(
        f"{COUNT:,} alarms of simulated base stations, out of order, some late, one in a thousand broken,\n"
        "are counted in windows of event time: failed equipment per 10 minutes, grid voltage per hour. The\n"
        "fifth failure within an hour raises an alert. Results go to SQLite and files, alerts to a webhook\n"
        f"too, the alarm desk. After {CLOSES_AFTER} alerts it will be down for {CLOSED_S:.0f} seconds.\n"
        f"\n$ signoff run {FILE} --once        (Spark takes some seconds to start)"
    )
    with Desk(HOME / "out" / "desk.jsonl", closes_after=CLOSES_AFTER, closed_s=CLOSED_S) as desk:
        pipelines.write(pipelines.analysis(_places(desk.url), name="demo", spark=SOON), HOME)
        graph = load(FILE)
        with narrator(desk, graph) as seen:
            code = cli.app(["run", str(FILE), "--once"], prog_name="signoff", standalone_mode=False) or 0
    report, results = audit(graph, LogReader), Results(HOME / "out")
    say("\nWhat the windows say:")
    for line in results.told():
        say(f"  {line}")
    _late(graph)
    held = _compare_sinks(graph, results)
    whereabouts = _every_alarm_is_somewhere(graph, results)
    complete = all(each.rows == each.signed for each in held)
    complete &= all(each.alarms == sum(each[2:]) for each in whereabouts)
    _dead_letters(graph)
    files = demo_report.write(HOME / "report", results, report.total.as_dict()["received"], whereabouts, held)
    say(f"\nThe same as a report: {' and '.join(map(str, files))}")
    took_s = time.monotonic() - began
    say(
        f"\n{seen.rate:,.0f} alarms a second were settled: they are simulated at {RATE:,} a second, and the "
        "desk was down\nfor a while. What the engine can do is in docs/bench.md. "
        f"All this took {took_s:.0f} s. Look for yourself:"
    )
    for command in _to_try(graph):
        say(f"  {_signoff()} {command}")
    say("")
    _account(report)
    return 0 if code == 0 and complete and report.balanced and not report.total.in_flight else 1


def _fresh_home() -> None:
    """An empty `demo-run`."""
    if HOME.exists() and any(HOME.iterdir()) and not FILE.exists():
        raise SignoffError(f"{HOME} exists and is not of a demo; move it away first")
    if (pid := RunLock(HOME / "state").held_by()) is not None:
        raise SignoffError(f"a demo is running here already, with pid {pid}")
    shutil.rmtree(HOME, ignore_errors=True)
    (HOME / "out").mkdir(parents=True)


def _places(desk_url: str) -> pipelines.Places:
    sources = pipelines.simulated(
        count=COUNT,
        rate=RATE,
        seed=7,
        max_events_per_batch=10_000,
        simulation={"per_day": 100_000, "late": 0.01, "low_battery": 309},
    )
    desk = {
        "type": "http",
        "url": desk_url,
        "mode": "array",
        "max_rows": 20,
        "retry": {"initial_ms": 200, "max_ms": 1000},
    }
    found = pipelines.embedded(sources, idle_after="2s")
    return pipelines.Places(sources, found.notifications, desk, found.storage, found.idle_after)


def _late(graph: Graph) -> None:
    windows = read_windows(graph)
    by_sensor = late_in_all(windows, "dataPointId")
    told = ", ".join(f"{sensor}: {number}" for sensor, number in by_sensor.most_common())
    say(f"  late alarms: a window was missed {by_sensor.total():,} times; by sensor {told}")


def _compare_sinks(graph: Graph, results: Results) -> list[demo_report.Held]:
    """Print what each sink holds, and whether that is what the ledger says it signed for, each row once."""
    with Ledger(graph.state / "ledger.db", readonly=True) as ledger:
        signed = {name: totals.rows for name, totals in ledger.sink_totals().items()}
    say("\nCounted in the sinks themselves:")
    held = []
    for name in graph.sinks:
        ids, where = results.ids(name)
        fine = len(ids) == signed.get(name, 0)
        held.append(demo_report.Held(name, len(ids), signed.get(name, 0)))
        twice = sum(ids.values()) - len(ids)
        verdict = "as signed for" if fine else f"BUT {signed.get(name, 0):,} SIGNED FOR"
        more = f", {twice} of them sent twice" if twice else ""
        say(f"  {name:28} {len(ids):7,} rows, {verdict}{more}   {where}")
    return held


def _every_alarm_is_somewhere(graph: Graph, results: Results) -> list[demo_report.Whereabouts]:
    """Print, for each analysis without overlaps, where the alarms are that it was to count."""
    windows, dead = read_windows(graph), _dead_by_stage(graph)
    say("\nEvery alarm that a window was to count:")
    found = []
    for name, what in COUNTED.items():
        came, counted = results.alarms(name), results.counted(name)
        late, no_time = windows[name].late, dead[name]
        fine = came == counted + late + no_time
        found.append(demo_report.Whereabouts(what, came, counted, late, no_time))
        say(
            f"  {what:28} {came:6,} {'=' if fine else 'IS NOT'} {counted:,} counted + {late:,} late "
            f"+ {no_time:,} without a time that can be true"
        )
    return found


def _dead_by_stage(graph: Graph) -> Counter[str]:
    found: Counter[str] = Counter()
    with DeadLetters(graph.state / "dead_letters.db", readonly=True) as letters:
        for (stage, _), number in letters.counts().items():
            found[stage] += number
    return found


def _dead_letters(graph: Graph) -> None:
    with DeadLetters(graph.state / "dead_letters.db", readonly=True) as letters:
        counted: Counter[tuple[str, str]] = Counter()
        for (stage, reason), number in letters.counts().items():
            counted[stage, _kind(reason)] += number
    say("\nDead letters by reason:")
    for (stage, reason), number in counted.most_common(8):
        say(f"  {number:5}  {stage}: {reason}")
    if len(counted) > 8:
        say(f"         and {len(counted) - 8} reasons more")


def _kind(reason: str) -> str:
    """A reason without the place and the value that differ from event to event."""
    return re.sub(r" at character \d+$", "", reason)


def _to_try(graph: Graph) -> list[str]:
    commands = ["graph", "status", "audit", "dead-letters list"]
    found = [f"{command} {FILE}" for command in commands] + [f"explain {FILE} stations/17"]
    with DeadLetters(graph.state / "dead_letters.db", readonly=True) as letters:
        first = next(iter(letters.list(limit=1)), None)
    return found + ([f"explain {FILE} {first.event_id}"] if first else [])


def _signoff() -> str:
    """The command as it can be typed here."""
    installed = Path(sys.prefix) / "bin" / "signoff"
    here = Path.cwd()
    return str(installed.relative_to(here) if installed.is_relative_to(here) else installed)


def _account(report: Audit) -> None:
    for finding in report.findings:
        say(f"NOT BALANCED: {finding}")
    say("account: " + " ".join(f"{name}={number}" for name, number in report.total.as_dict().items()))


if __name__ == "__main__":
    sys.exit(main())
