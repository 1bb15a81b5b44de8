"""`make chaos`: publish a known set while every process is killed again and again, then count.

    publisher ──► wire ──► RabbitMQ ──► wire ──► signoff run ──► SQLite, wire ──► PostgreSQL, dead letters

State and SQLite are on a disk of fixed size, which is filled now and then, and the pipeline has a clock of
its own, which jumps; where that is not possible these faults are left out, and that is said.

The seed, printed first, gives the same faults and the same waits again; what the faults hit depends on
the machine. Publishing is spread over the faults. Afterwards everything may settle, the run is stopped,
and every message must be where it belongs, exactly once. Exit code 1 and a directory that is kept mean
that it is not.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg

from signoff.errors import SignoffError
from tests.brokers import PASSWORD, USER, RabbitMQ, private_rabbitmq
from tests.chaos import messages
from tests.chaos.faults import KILLS, KINDS, Fault, Victims, Wires, plan
from tests.chaos.machine import Machine
from tests.chaos.publisher import Publisher
from tests.chaos.verdict import Evidence, Finding, Row, judge
from tests.chaos.wire import wire_to
from tests.promises.product import SIGNOFF, Product, Running
from tests.servers import PostgresServer, private_postgres, wait_until

COLUMNS = "event_id, message_id, n, text"
_MOST_PER_S = 8_000.0
_TICK_S = 0.1
_PROGRESS_S = 5.0
_QUIET_S = 3.0
"""Nothing has moved for so long: everything is settled."""
_STUCK_S = 150.0
"""Nothing has moved for so long although something is owed: it never will."""
_WORKING_S = 45.0
_OVERHEAD_S = 5.0
"""What a fault takes besides its wait; only a first guess."""


class Chaos:
    """One chaos run in a directory of its own."""

    def __init__(
        self,
        directory: Path,
        goal: int,
        faults: Sequence[Fault],
        rabbitmq: RabbitMQ,
        postgres: PostgresServer,
        machine: Machine,
        limit_s: float = float("inf"),
    ) -> None:
        """`limit_s`: faults that have not come by then do not come any more."""
        self.directory, self.goal, self.faults, self._machine = directory, goal, faults, machine
        self._limit_s = limit_s
        self.findings: list[Finding] = []
        self._rabbitmq, self._postgres = rabbitmq, postgres
        self._began = self._told_at = time.monotonic()
        self._left_s = 0.0

    def execute(self) -> list[Finding]:
        """Returns all that is wrong."""
        for queue in messages.QUEUES:
            self._rabbitmq.declare_queue(queue, "quorum" if queue == "quorum" else "classic")
        with ExitStack() as stack:
            wires = Wires(
                stack.enter_context(wire_to(self._rabbitmq.port)),
                stack.enter_context(wire_to(self._postgres.port)),
            )
            url = f"amqp://{USER}:{PASSWORD}@127.0.0.1:{wires.broker.port}/%2F"
            database = self._postgres.url.replace(f":{self._postgres.port}/", f":{wires.database.port}/")
            self._product = stack.enter_context(_pipeline(self.directory, self._machine, url, database))
            self.victims = Victims(self._product, self._rabbitmq, self._postgres, wires, self._machine)
            stack.callback(self.victims.close)
            self.publisher = Publisher(url, self.goal, self._rate)
            self.publisher.start()
            stack.callback(self.publisher.stop)
            self._strike()
            self._publish_the_rest()
            self._settle()
            self._stop()
        self._judge()
        return self.findings

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    # In the order of a run

    def _strike(self) -> None:
        began, waits = time.monotonic(), sum(fault.wait_s for fault in self.faults)
        waited = 0.0
        for number, fault in enumerate(self.faults):
            at = time.monotonic() + fault.wait_s
            overhead = _OVERHEAD_S if not number else (at - fault.wait_s - began - waited) / number
            if time.monotonic() - began > self._limit_s:
                self._say(f"the time is up: {len(self.faults) - number} faults are left out")
                break
            while (now := time.monotonic()) < at:
                rest = waits - waited - fault.wait_s + (at - now)
                left_s = rest + overhead * (len(self.faults) - number)
                self._left_s = min(left_s, max(began + self._limit_s - now, 1.0))
                self._tick(min(_TICK_S, at - now))
            waited += fault.wait_s
            if fault.amid:
                self._work_a_little(fault.pick)
            hit = self.victims.strike(fault)
            self._say(f"{number + 1}/{len(self.faults)} {fault.kind}: {hit}")
        self._left_s = 0.0

    def _work_a_little(self, seconds: float) -> None:
        """Until something was settled after now, and for a moment more; at most for a while."""
        before, deadline = self._settled(), time.monotonic() + _WORKING_S
        while self._settled() <= before and time.monotonic() < deadline:
            self._tick(_TICK_S)
        self._tick(seconds)

    def _settled(self) -> int:
        with suppress(SignoffError, sqlite3.Error):
            return self._product.settled_upto()
        return 0

    def _rate(self, missing: int) -> float:
        """Messages a second, so that publishing lasts as long as the faults."""
        return min(missing / self._left_s, _MOST_PER_S) if self._left_s > 0.1 else _MOST_PER_S

    def _publish_the_rest(self) -> None:
        confirmed, moved_at = 0, time.monotonic()
        while self.publisher.is_alive():
            self._tick(_TICK_S)
            if len(self.publisher.confirmed) > confirmed:
                confirmed, moved_at = len(self.publisher.confirmed), time.monotonic()
            if time.monotonic() - moved_at > _STUCK_S:
                raise AssertionError(f"the broker has confirmed nothing for {_STUCK_S:.0f} s")
        self.victims.repaired()
        self._say("all published, all faults done; waiting until everything is settled")

    def _settle(self) -> None:
        """Wait until nothing is owed and nothing moves any more."""
        moved_at, last = time.monotonic(), None
        while True:
            state = self._state()
            now = time.monotonic()
            if state != last:
                moved_at, last = now, state
            received, settled, told, waiting = state
            done = received == settled == told and not waiting
            patience = _STUCK_S if not done else _QUIET_S if received >= self.goal else 10 * _QUIET_S
            if now - moved_at > patience:
                break
            self._tick(_TICK_S)
        if not done:
            text = f"received {received}, settled {settled}, told {told}, {waiting} waiting in the queues"
            self.findings.append(Finding(f"nothing has moved for {_STUCK_S:.0f} s: {text}"))

    def _state(self) -> tuple[int, int, int, int]:
        waiting = sum(self._rabbitmq.count(queue) for queue in messages.QUEUES)
        with suppress(SignoffError, sqlite3.Error):
            product = self._product
            return product.received(), product.settled_upto(), product.told_upto(), waiting
        return -1, -1, -1, waiting

    def _stop(self) -> None:
        self.victims.remember()
        done = self.victims.run.terminate(120)
        if done.code:
            self.findings.append(Finding(f"the run ended with code {done.code} after SIGTERM"))
        if outlived := self.victims.outlived():
            self.findings.append(Finding("processes outlived their run", tuple(outlived)))
        if "unknown delivery tag" in done.output:
            self.findings.append(Finding("the source acknowledged by a tag that was not its own any more"))
        if ended := self.victims.ended_by_itself:
            codes = ", ".join(map(str, ended))
            self.findings.append(Finding(f"the run ended by itself {len(ended)} times, with code {codes}"))

    def _judge(self) -> None:
        # Then what was left unacknowledged is back in its queue.
        wait_until(lambda: not any(map(self._rabbitmq.consumers, messages.QUEUES)), what="no consumer")
        audit = _signoff("audit", self._product.file, "--json")
        letters = _signoff("dead-letters", "list", self._product.file, "--json").stdout.splitlines()
        evidence = Evidence(
            confirmed=self.publisher.confirmed,
            perhaps=self.publisher.perhaps,
            tables={
                "SQLite": _in_sqlite(self._machine.disk / "out.db"),
                "PostgreSQL": _in_postgres(self._postgres),
            },
            letters=map(json.loads, letters),
            queues={queue: self._rabbitmq.count(queue) for queue in messages.QUEUES},
            audit=json.loads(audit.stdout),
            audit_code=audit.returncode,
            log_head=self._product.received(),
        )
        self.findings += judge(evidence)
        self.arrived, self.letters = evidence.log_head, len(letters)

    # What it says

    def _tick(self, seconds: float) -> None:
        time.sleep(seconds)
        self.victims.keep_running()
        if self.publisher.failure is not None:
            raise self.publisher.failure
        if time.monotonic() - self._told_at > _PROGRESS_S:
            received, settled = -1, -1
            with suppress(SignoffError, sqlite3.Error):
                received, settled = self._product.received(), self._product.settled_upto()
            status = self._product.intake_status()
            trouble = f"; {status.reason}" if status and status.reason else ""
            self._say(
                f"confirmed {len(self.publisher.confirmed):,}, perhaps {len(self.publisher.perhaps):,}, "
                f"in the log {received:,}, settled {settled:,}{trouble}"
            )

    def _say(self, text: str) -> None:
        self._told_at = time.monotonic()
        print(f"{self.seconds:7.1f} s  {text}", flush=True)

    def print_table(self) -> None:
        struck, published = self.victims.struck, self.publisher
        rows: dict[str, Any] = {
            **{
                (f"kills: {kind}" if kind in KILLS else f"faults: {kind}"): count
                for kind, count in sorted(struck.items())
            },
            "kills": sum(count for kind, count in struck.items() if kind in KILLS),
            "messages confirmed": f"{len(published.confirmed):,}",
            "messages perhaps published": f"{len(published.perhaps):,}",
            "connections of the publisher": published.connections,
            "messages in the log": f"{self.arrived:,}",
            "dead letters": self.letters,
            "duration": f"{self.seconds:.0f} s",
        }
        for name, value in rows.items():
            print(f"  {name:<30} {value:>12}")


class OnMachine(Product):
    """A product with its state on the machine's disk, and with the machine's clock."""

    def __init__(self, directory: Path, machine: Machine, **nodes: Any) -> None:
        super().__init__(directory, **nodes)
        self.state = machine.disk / "state"
        self._machine = machine

    def start(self, *args: str, stdin: Any = subprocess.DEVNULL) -> Running:
        command = [*self._machine.command, str(SIGNOFF), "run", str(self.file), "--quiet", *args]
        running = Running(command, self.directory / "output.txt", stdin)
        self._runs.append(running)
        return running


@contextmanager
def _pipeline(directory: Path, machine: Machine, broker: str, database: str) -> Iterator[Product]:
    folder = machine.disk.relative_to(directory)
    parsed = {"type": "parse_json", "input": "incoming", "schema": messages.SCHEMA, "keep": ["message_id"]}
    warehouse = {"type": "postgres", "input": "parsed", "url": database, "table": "events"}
    with OnMachine(
        directory,
        machine,
        sources={"incoming": {"type": "rabbitmq", "url": broker, "queues": list(messages.QUEUES)}},
        transforms={"parsed": parsed},
        sinks={
            "local": {"type": "sqlite", "input": "parsed", "path": f"{folder}/out.db", "table": "events"},
            "warehouse": {**warehouse, "retry": {"initial_ms": 100, "max_ms": 1000}},
        },
        name="chaos",
        state=f"./{folder}/state",
    ) as product:
        yield product


def _signoff(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SIGNOFF, *map(str, arguments)], capture_output=True, text=True)


def _in_sqlite(file: Path) -> Iterator[Row]:
    with closing(sqlite3.connect(file)) as database:
        yield from database.execute(f"SELECT {COLUMNS} FROM events")


def _in_postgres(server: PostgresServer) -> Iterator[Row]:
    with psycopg.connect(server.url) as database, database.cursor("rows") as cursor:
        cursor.itersize = 20_000
        yield from cursor.execute(f"SELECT {COLUMNS} FROM events")


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.chaos.run", description=__doc__.partition("\n")[0])
    parser.add_argument("--messages", type=int, default=500_000, help="messages to be confirmed")
    parser.add_argument("--kills", type=int, default=50, help="SIGKILLs; other faults come on top")
    parser.add_argument("--kinds", nargs="*", choices=KINDS, help="only these kinds of faults")
    parser.add_argument("--seed", type=int, help="repeats the faults and waits of an earlier run")
    parser.add_argument("--every", type=float, default=10.0, metavar="SECONDS", help="from fault to fault")
    parser.add_argument("--minutes", type=float, help="for faults; those that are left then are left out")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="work here, and leave everything")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    print(f"chaos: seed={seed} messages={options.messages} kills={options.kills} every={options.every:g}")
    # A terminated chaos run leaves no server behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    directory: Path = (options.keep or Path(tempfile.mkdtemp(prefix="signoff-chaos-"))).resolve()
    if (directory / "state").exists():
        parser.error(f"{directory} holds an earlier run")
    wanted = options.kinds or KINDS
    with (
        private_rabbitmq() as rabbitmq,
        private_postgres() as postgres,
        Machine(directory, wanted) as machine,
    ):
        for kind, lacks in machine.lacks.items():
            print(f"chaos: no faults of kind {kind}: {lacks}", flush=True)
        kinds = [kind for kind in wanted if kind not in machine.lacks]
        faults = plan(options.kills, seed, options.every, kinds)
        limit_s = float("inf") if options.minutes is None else 60 * options.minutes
        chaos = Chaos(directory, options.messages, faults, rabbitmq, postgres, machine, limit_s)
        try:
            findings = chaos.execute()
        except BaseException:
            print(f"chaos: not finished seed={seed}; everything is kept in {directory}", flush=True)
            raise
        finally:
            (directory / "broker.log").write_text(rabbitmq.log)
    chaos.print_table()
    if findings:
        print(*(f"FOUND  {finding}" for finding in findings), sep="\n")
        print(f"chaos: failed seed={seed}; everything is kept in {directory}")
        return 1
    machine.unmount()
    if options.keep is None:
        shutil.rmtree(directory, ignore_errors=True)
    kills = sum(count for kind, count in chaos.victims.struck.items() if kind in KILLS)
    print(f"chaos: ok seed={seed} messages={options.messages} kills={kills}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
