"""`make alerts`: alerts that start reports, each published three times at full speed, while every process is
killed.

    publisher ──► RabbitMQ ──► signoff run ──► sink job ──► signoff jobs run ──► report, SQLite

What an alert is about is in the table before the alert is published, and not much before: they come in waves,
so that a run which has not read the table since shows too little. At every moment: what is settled was
covered by a run that is done. Afterwards: as many runs as the cool-down allows and no more, each began after
its alerts were received, each was done once; one report and one row for each key, which show all that the
alerts are about; every message is acknowledged. Exit code 1 and a directory that is kept mean that something
of this does not hold.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml
from pyroaring import BitMap64

from signoff.errors import SignoffError
from signoff.invoker.lookup import STATUS
from signoff.invoker.notes import Invocation, InvokerNotes
from signoff.jobs.records import Record, Records
from signoff.link.job_sink import invoker_place
from signoff.log import LogReader
from tests.brokers import RabbitMQ, private_rabbitmq
from tests.promises.product import SPARK, Product, Running

TIMES = 3
KINDS = ("engine", "jvm", "intake", "invoker", "job", "job's jvm", "run")
_TICK_S = 0.2
_AWAITED_S = 20.0
"""How long a process of the kind that is to be killed is waited for: runs of the job come and go."""
_BEGUN_S = 60.0
"""How long a wave waits until a run has begun that has not seen it."""
_STUCK_S = 300.0
QUEUE = "alerts"
JOB: dict[str, Any] = {
    "name": "report",
    "state": "./job_state",
    "spark": SPARK,
    "parameters": {"station": "int"},
    "sources": {
        "seen": {
            "type": "table", "path": "./seen.db", "table": "seen", "where": "station = :station",
            "complete_to": "max(n)",
        }
    },
    "transforms": {
        "counted": {
            "type": "sql", "input": "seen",
            "query": "SELECT :station AS station, count(*) AS seen FROM seen",
        }
    },
    "sinks": {
        "table": {"type": "sqlite", "input": "counted", "path": "./out.db", "table": "counted"},
        "report": {
            "type": "report", "input": "counted", "path": "./reports/${station}", "formats": ["json"],
            "title": "Station ${station}", "content": [{"table": "counted"}],
        },
    },
}  # fmt: skip


@dataclass
class Alerts:
    """One run of it, in a directory of its own."""

    directory: Path
    broker: RabbitMQ
    alerts: int
    keys: int
    kills: int
    cool_down: float
    seed: int
    waves: int = 2
    findings: list[str] = field(default_factory=list)
    killed: Counter[str] = field(default_factory=Counter)
    _run: Running | None = None
    _published: int = 0

    def execute(self) -> list[str]:
        """Returns all that is wrong."""
        began = time.monotonic()
        self._write()
        with self._product:
            self._start()
            self._publish()
            self._strike()
            self._settle()
            self.took = time.monotonic() - began
            assert self._run is not None
            done = self._run.terminate(120)
            if done.code:
                self.findings.append(f"the run ended with code {done.code} after SIGTERM")
            self._judge()
        return self.findings

    # in the order of a run

    def _write(self) -> None:
        self.broker.declare_queue(QUEUE, "classic")
        source = {"type": "rabbitmq", "url": self.broker.url, "queues": [QUEUE], "prefetch": 10_000}
        schema = "station INT, n INT"
        self._product = Product(
            self.directory,
            sources={"incoming": source},
            transforms={"parsed": {"type": "parse_json", "input": "incoming", "schema": schema}},
            sinks={
                "start": {
                    "type": "job", "input": "parsed", "job": "./job.yaml",
                    "parameters": {"station": "station"}, "cool_down": self.cool_down, "at_most": 2,
                    "retry": {"attempts": 3, "initial_ms": 500, "max_ms": 1000},
                }
            },
        )  # fmt: skip
        (self.directory / "job.yaml").write_text(yaml.safe_dump(JOB, sort_keys=False))
        with closing(sqlite3.connect(self.directory / "seen.db")) as db:
            db.execute("CREATE TABLE seen (station INTEGER, n INTEGER)")
            db.commit()

    def _start(self) -> None:
        self._run = self._product.start("--drain-seconds", "1")

    def _publish(self) -> None:
        """The next wave of alerts; what they are about is in the table first."""
        first, end = self._published, self._published + -(-self.alerts // self.waves)
        wave = range(first, min(end, self.alerts))
        with closing(sqlite3.connect(self.directory / "seen.db")) as db:
            db.executemany("INSERT INTO seen VALUES (?, ?)", [(n % self.keys, n) for n in wave])
            db.commit()
        bodies = [json.dumps({"station": n % self.keys, "n": n}).encode() for n in wave]
        shuffled = bodies * TIMES
        random.Random(self.seed).shuffle(shuffled)
        self.broker.publish(shuffled, QUEUE)
        self._published = wave.stop

    def _strike(self) -> None:
        chance = random.Random(self.seed)
        for number in range(self.kills):
            if number and number * self.waves // self.kills > (number - 1) * self.waves // self.kills:
                self._until(lambda: bool(self._runs()), _BEGUN_S)
                self._publish()
            self._tick(chance.uniform(0.5, 6.0))
            if self._all_told():
                self.findings.append(f"settled after {number} kills: use more alerts, or a longer cool-down")
                break
            kind = KINDS[number] if number < len(KINDS) else chance.choice(KINDS)
            self._await(kind)
            for other in (kind, *chance.sample(KINDS, len(KINDS))):
                if self._kill(other):
                    break
        while self._published < self.alerts:
            self._publish()

    def _await(self, kind: str) -> None:
        """Until there is a process of a kind, or nobody waits for one any more."""
        if kind != "run":
            self._until(lambda: self._pids()[kind]() is not None or self._all_told(), _AWAITED_S)

    def _until(self, so: Callable[[], bool], seconds: float) -> None:
        """Until something is so, or the time is up."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            with suppress(SignoffError, sqlite3.Error, FileNotFoundError):
                if so():
                    return
            self._tick(_TICK_S)

    def _kill(self, kind: str) -> bool:
        """SIGKILL one process of a kind; false if there is none."""
        assert self._run is not None
        if kind == "run":
            self._run.kill9()
            self._start()
        else:
            pid = self._pids()[kind]()
            if pid is None:
                return False
            try:
                self._product.kill9(pid)
            except (psutil.NoSuchProcess, ProcessLookupError):
                return False
        self.killed[kind] += 1
        print(f"{sum(self.killed.values())}/{self.kills} killed: {kind}", flush=True)
        return True

    def _pids(self) -> dict[str, Callable[[], int | None]]:
        return {
            "engine": self._product.engine_pid,
            "jvm": self._product.jvm_pid,
            "intake": self._product.intake_pid,
            "invoker": lambda: self._invoker().pid if self._invoker() else None,
            "job": lambda: next((each.pid for each in self._jobs()), None),
            "job's jvm": lambda: next((child.pid for each in self._jobs() for child in _javas(each)), None),
        }

    def _invoker(self) -> Any:
        with suppress(OSError, ValueError, psutil.Error):
            path = invoker_place(self._product.state, "start").notes / STATUS
            process = psutil.Process(json.loads(path.read_bytes())["pid"])
            return process if "signoff.invoker" in process.cmdline() else None
        return None

    def _jobs(self) -> list[psutil.Process]:
        with suppress(psutil.Error):
            invoker = self._invoker()
            return [each for each in (invoker.children() if invoker else ()) if "jobs" in each.cmdline()]
        return []

    def _settle(self) -> None:
        deadline = time.monotonic() + _STUCK_S
        while not self._all_told():
            if time.monotonic() > deadline:
                jobs = self._product.status()["jobs"]
                self.findings.append(f"nothing is settled after {_STUCK_S:.0f} s: {jobs}")
                return
            self._tick(_TICK_S)

    def _all_told(self) -> bool:
        with suppress(SignoffError, sqlite3.Error):
            received = self._product.received()
            return received >= self.alerts * TIMES and self._product.told_upto() >= received
        return False

    def _tick(self, seconds: float) -> None:
        """Wait, and look meanwhile whether anything is settled that no run has covered."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            with suppress(SignoffError, sqlite3.Error, FileNotFoundError):
                self._look()
            time.sleep(min(_TICK_S, max(until - time.monotonic(), 0.0)))

    def _look(self) -> None:
        settled = BitMap64()
        with self._product.ledger() as ledger:
            for part in ledger.settlements("incoming", 0)[1]:
                settled |= part.settled
        covered = BitMap64()
        done = {record.asked_by for record in self._records() if record.state == "done"}
        for run in self._runs():
            if run.asked_by in done:
                covered |= run.origins.get("incoming", BitMap64())
        if early := settled - covered:
            self.findings.append(f"settled before a run that covers them was done: {list(early)[:5]}")

    # the verdict

    def _runs(self) -> list[Invocation]:
        notes = InvokerNotes(invoker_place(self._product.state, "start").notes, readonly=True)
        with closing(notes):
            found = [notes.get(number) for number, _, _ in notes.beginnings()]
        return [run for run in found if run is not None]

    def _records(self) -> list[Record]:
        with Records(self.directory / "job_state", readonly=True) as records:
            return records.newest()

    def _judge(self) -> None:
        say, runs, records = self.findings.append, self._runs(), self._records()
        account = self._product.account()
        if account["delivered"] != account["received"] or account["received"] < self.alerts * TIMES:
            say(f"the account is {account}")
        if left := self.broker.count(QUEUE):
            say(f"{left} messages are in the queue again: they were not acknowledged")
        most = self.keys * (1 + int(self.took / self.cool_down))
        self.runs = len(runs)
        if not self.keys <= len(runs) <= most:
            say(f"{len(runs)} runs of {self.keys} keys in {self.took:.0f} s, {self.cool_down:.0f} s apart")
        by = Counter(record.asked_by for record in records)
        if sorted(by) != sorted(run.asked_by for run in runs) or set(by.values()) != {1}:
            say(f"{len(runs)} runs were decided on, the job knows {by}")
        if wrong := [record.id for record in records if record.state != "done"]:
            say(f"runs that are not done: {wrong}")
        self._judge_times(runs)
        self._judge_reports()

    def _judge_times(self, runs: list[Invocation]) -> None:
        log, covered = LogReader(self._product.state / "log" / "incoming"), BitMap64()
        seen: dict[str, float] = {}
        for run in runs:
            events = run.origins.get("incoming", BitMap64())
            if twice := covered & events:
                self.findings.append(f"covered by two runs: {list(twice)[:5]}")
            covered |= events
            for number, event in log.lookup(events).items():
                text = bytes(event["payload"]).decode()
                first = seen.setdefault(text, event["received_at"].timestamp())
                if first > run.began.at:  # of those that are equal the first counts
                    self.findings.append(f"incoming/{number} was received after its run began")
        if len(covered) != self._product.received():
            self.findings.append(f"{len(covered)} of {self._product.received()} events are covered by runs")

    def _judge_reports(self) -> None:
        expected = Counter(n % self.keys for n in range(self.alerts))
        with closing(sqlite3.connect(self.directory / "out.db")) as db:
            rows = db.execute("SELECT station, seen FROM counted").fetchall()
        if sorted(rows) != sorted(expected.items()):
            self.findings.append(f"the table holds {sorted(rows)}")
        files = sorted((self.directory / "reports").glob("*.json"))
        if [file.name for file in files] != sorted(f"{key}.json" for key in expected):
            self.findings.append(f"the reports are {[file.name for file in files]}")
        for file in files:
            (row,) = json.loads(file.read_bytes())["inputs"]["counted"]["rows"]
            if row["seen"] != expected[row["station"]]:
                self.findings.append(f"{file.name} shows {row}")


def _javas(process: psutil.Process) -> list[psutil.Process]:
    with suppress(psutil.Error):
        return [each for each in process.children(recursive=True) if each.name() == "java"]
    return []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    for name, default in (("alerts", 1000), ("keys", 10), ("kills", 20), ("seed", 7)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--waves", type=int, default=2)
    parser.add_argument("--cool-down", type=float, default=60.0)
    parser.add_argument("--keep", type=Path)
    given = parser.parse_args()
    directory = given.keep or Path(tempfile.mkdtemp(prefix="signoff-alerts-"))
    with private_rabbitmq() as broker:
        run = Alerts(
            directory / "product", broker, given.alerts, given.keys, given.kills, given.cool_down, given.seed,
            given.waves,
        )  # fmt: skip
        findings = run.execute()
    for finding in dict.fromkeys(findings):
        print(finding)
    figures = (
        f"alerts={given.alerts} times={TIMES} keys={given.keys} kills={sum(run.killed.values())} "
        f"runs={run.runs} seconds={run.took:.0f}"
    )
    print(f"alerts: {'wrong' if findings else 'ok'} {figures}")
    if not findings and given.keep is None:
        shutil.rmtree(directory)
    elif findings:
        print(f"kept: {directory}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
