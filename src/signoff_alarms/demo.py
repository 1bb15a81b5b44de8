"""`python -m signoff_alarms.demo`: 60,000 alarms, three sinks, one of them down for some seconds.

It calls the same `signoff run FILE --once` as a user would, and holds the result against the sinks
themselves. Exits with 0 only if the account balances and every sink holds what it signed for.
"""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib import resources
from pathlib import Path

from signoff import cli, load
from signoff.errors import SignoffError
from signoff.intake import read_status
from signoff.ledger import DeadLetters, Ledger, RunLock
from signoff.ledger.audit import Audit, audit
from signoff.log import LogReader
from signoff.pipeline.graph import Graph
from signoff_alarms.desk import Desk

HOME = Path("demo-run")
LEDGER = HOME / "state" / "ledger.db"
DESK_URL = "http://127.0.0.1:8099/alarms"
"""As it stands in the pipeline file; the desk of a demo has a port that was free."""
CLOSES_AFTER = 5_000
CLOSED_S = 8.0
_LOOK_EVERY_S = 0.1


def main() -> int:
    began = time.monotonic()
    try:
        pipeline = _fresh_home()
        return _demo(pipeline, began)
    except SignoffError as error:
        say(str(error))
        return 1


def _demo(pipeline: Path, began: float) -> int:
    say(
        "60,000 alarms of simulated base stations, one in a thousand malformed, go through parse, filter,\n"
        "route and unfold to three sinks: files, an SQLite table and a webhook, the alarm desk.\n"
        f"After {CLOSES_AFTER:,} alarms the desk will be down for {CLOSED_S:.0f} seconds.\n"
        f"\n$ signoff run {pipeline} --once        (Spark takes some seconds to start)"
    )
    with Desk(HOME / "out" / "desk.jsonl", closes_after=CLOSES_AFTER, closed_s=CLOSED_S) as desk:
        pipeline.write_text(
            pipeline.read_text(encoding="utf-8").replace(DESK_URL, desk.url), encoding="utf-8"
        )
        with _narrator(desk):
            code = cli.app(["run", str(pipeline), "--once"], prog_name="signoff", standalone_mode=False) or 0
    graph = load(pipeline)
    report = audit(graph, LogReader)
    say("")
    complete = _compare_sinks(graph)
    _dead_letters(graph)
    say(f"\nAll this took {time.monotonic() - began:.0f} s. Look for yourself:")
    for command in _to_try(graph):
        say(f"  {_signoff()} {command}")
    say("")
    _account(report)
    return 0 if code == 0 and complete and report.balanced and not report.total.in_flight else 1


def say(text: str) -> None:
    """To wherever standard output leads at this moment: during a run, above the live table."""
    print(text, file=sys.stdout, flush=True)


def _fresh_home() -> Path:
    """An empty `demo-run` with the pipeline file in it."""
    pipeline = HOME / "pipeline.yaml"
    if HOME.exists() and any(HOME.iterdir()) and not pipeline.exists():
        raise SignoffError(f"{HOME} exists and is not of a demo; move it away first")
    if (pid := RunLock(HOME / "state").held_by()) is not None:
        raise SignoffError(f"a demo is running here already, with pid {pid}")
    shutil.rmtree(HOME, ignore_errors=True)
    (HOME / "out").mkdir(parents=True)
    pipeline.write_text(resources.files("signoff_alarms").joinpath("demo.yaml").read_text(encoding="utf-8"))
    return pipeline


# -- during the run


@contextmanager
def _narrator(desk: Desk) -> Iterator[None]:
    """Says in plain words what can be seen of the desk and the source."""
    over = threading.Event()
    thread = threading.Thread(target=_narrate, args=(desk, over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _narrate(desk: Desk, over: threading.Event) -> None:
    flowing, closed, held = False, False, False
    while not over.wait(_LOOK_EVERY_S):
        if not flowing and LEDGER.exists() and _settled():
            flowing = True
            say("→ Alarms flow: logged, processed, written to all three sinks, then settled, batch by batch.")
        if not closed and desk.state == "closed":
            closed = True
            say(
                "→ The desk is DOWN: it answers 503. Archive and table have signed for their rows; only the\n"
                "  desk's go out again, with growing pauses. Until it has them, their alarms are not settled."
            )
        if closed and not held and desk.state == "closed" and _is_held():
            held = True
            say("→ The log is at its limit, so the source is HELD BACK. Nothing is lost or overflows.")
        if desk.state == "open again":
            say(f"→ The desk is BACK after refusing {desk.refused} requests. It gets what it is owed.")
            return


def _settled() -> int:
    with Ledger(LEDGER, readonly=True) as ledger:
        return ledger.settled_upto("stations")


def _is_held() -> bool:
    status = read_status(HOME / "state" / "intake" / "stations")
    return status is not None and status.state == "held"


# -- after it


def _compare_sinks(graph: Graph) -> bool:
    """Print what each sink holds; true if that is what the ledger says it signed for, each row once."""
    with Ledger(LEDGER, readonly=True) as ledger:
        signed = {name: totals.rows for name, totals in ledger.sink_totals().items()}
    found = {
        "archive": (_ids_in_files(HOME / "out" / "archive"), "out/archive/*.jsonl"),
        "readings": (_ids_in_table(HOME / "out" / "readings.db"), "out/readings.db, table readings"),
        "desk": (_ids_in_files(HOME / "out"), "out/desk.jsonl, written by the desk"),
    }
    say("Results, counted in the sinks themselves:")
    complete = True
    for name in graph.sinks:
        ids, where = found[name]
        fine = len(ids) == signed.get(name, 0)
        complete &= fine
        twice = sum(ids.values()) - len(ids)
        verdict = "as signed for" if fine else f"BUT {signed.get(name, 0):,} SIGNED FOR"
        more = f", {twice} of them sent twice" if twice else ""
        say(f"  {name:9} {len(ids):7,} rows, {verdict}{more}   {HOME}/{where}")
    return complete


def _ids_in_files(directory: Path) -> Counter[str]:
    ids: Counter[str] = Counter()
    for file in directory.glob("*.jsonl"):
        with file.open(encoding="utf-8") as lines:
            ids.update(json.loads(line)["event_id"] for line in lines)
    return ids


def _ids_in_table(path: Path) -> Counter[str]:
    with closing(sqlite3.connect(path)) as db:
        return Counter(event_id for (event_id,) in db.execute("SELECT event_id FROM readings"))


def _dead_letters(graph: Graph) -> None:
    with DeadLetters(graph.state / "dead_letters.db", readonly=True) as letters:
        counted: Counter[tuple[str, str]] = Counter()
        for (stage, reason), number in letters.counts().items():
            counted[stage, _kind(reason)] += number
    say("\nDead letters by reason:")
    for (stage, reason), number in counted.most_common():
        say(f"  {number:5}  {stage}: {reason}")


def _kind(reason: str) -> str:
    """A reason without the place and the value that differ from event to event."""
    return re.sub(r" at character \d+$", "", reason)


def _to_try(graph: Graph) -> list[str]:
    file = HOME / "pipeline.yaml"
    commands = [f"graph {file}", f"audit {file}", f"dead-letters list {file}", f"explain {file} stations/17"]
    with DeadLetters(graph.state / "dead_letters.db", readonly=True) as letters:
        first = next(iter(letters.list(limit=1)), None)
    return commands + ([f"explain {file} {first.event_id}"] if first else [])


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
