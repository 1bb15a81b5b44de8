"""The faults: which, when, and on whom. The plan depends on the seed alone.

    run        signoff run itself; started again after a moment, while its children may still be going down
    engine     the Python driver of the engine
    jvm        Spark
    intake     the process that talks to the broker
    worker     a Python process of Spark: one that works on rows, forks such, or plans a batch
    broker     RabbitMQ; started again on the same data
    postgres   PostgreSQL; started again on the same data, until then the sink fails
    cut        all connections of the broker are reset
    sink-cut   all connections of the database are reset
    sink-stall the connections of the database stay, but nothing gets through; then it does, or they are reset
    disk       the disk with the state and the SQLite sink is full, and has room again after a while
    clock      the clock of the pipeline's processes jumps, by seconds or an hour, forwards or back

The first seven are SIGKILL; the others kill nobody, and come on top. Whoever is not there yet is killed as
soon as it is: so things are killed while they start. Half of the faults wait until rows are being settled
again: so things are killed while they work.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

import psutil

from tests.brokers import RabbitMQ
from tests.chaos.machine import Machine
from tests.chaos.wire import Wire
from tests.promises.product import Product, Running
from tests.servers import PostgresServer, wait_until

KILLS = ("run", "engine", "jvm", "intake", "worker", "broker", "postgres")
DISK, CLOCK = "disk", "clock"
OTHERS = ("cut", "sink-cut", "sink-stall", DISK, CLOCK)
KINDS = KILLS + OTHERS
_PAUSES_S = {
    "run": (0.0, 1.0),
    "broker": (0.0, 2.0),
    "postgres": (1.0, 4.0),
    "sink-stall": (0.5, 8.0),
    DISK: (1.0, 8.0),
}
_STEPS_S = (-3600.0, -90.0, -2.0, 2.0, 90.0, 3600.0)
_APPEARS_S = 300.0
_REPAIRED_S = 180.0
_OUTLIVED_S = 20.0


@dataclass(frozen=True)
class Fault:
    """One fault of the plan."""

    kind: str
    wait_s: float
    """Before it, from the one before."""
    pause_s: float
    """Before what was killed is started again, where we do that and not the product."""
    amid: bool
    """Not before rows are being settled again."""
    pick: float
    """Which one, where there are several: 0 the first, just below 1 the last."""


def plan(kills: int, seed: int, every_s: float, kinds: Sequence[str] = KINDS) -> list[Fault]:
    """So many kills, and other faults besides: rounds in which each kind comes once, in any order.

    The waits are `every_s` in the mean: some too short for anything to recover, some long enough.
    """
    chance = random.Random(seed)
    order: list[str] = []
    while sum(kind in KILLS for kind in order) < kills:
        order += chance.sample(kinds, len(kinds))
    while sum(kind in KILLS for kind in order) > kills:
        del order[max(place for place, kind in enumerate(order) if kind in KILLS)]
    faults = []
    for kind in order:
        soon = chance.random() < 0.4
        wait = chance.uniform(0, 0.4) if soon else chance.uniform(0.7, 2.3)
        pause = chance.uniform(*_PAUSES_S.get(kind, (0.0, 0.0)))
        faults.append(Fault(kind, wait * every_s, pause, chance.random() < 0.5, chance.random()))
    return faults


@dataclass(frozen=True)
class Wires:
    """What clients are connected through."""

    broker: Wire
    database: Wire


class Victims:
    """A pipeline that is kept running, its broker, its database, and what surrounds them."""

    def __init__(
        self, product: Product, rabbitmq: RabbitMQ, postgres: PostgresServer, wires: Wires, machine: Machine
    ) -> None:
        self._product, self._rabbitmq, self._postgres = product, rabbitmq, postgres
        self._wires, self._machine = wires, machine
        self._repairs = ThreadPoolExecutor(4, "repair")
        self._under_repair: dict[str, Future[None]] = {}
        self._family: set[psutil.Process] = set()
        self._killed: set[psutil.Process] = set()
        self.struck: Counter[str] = Counter()
        self.ended_by_itself: list[int] = []
        self.run: Running = product.start()

    def strike(self, fault: Fault) -> str:
        """Do it, and say what was hit. What is to be started again is, at once or in the background."""
        strike = getattr(self, f"_strike_{fault.kind.replace('-', '_')}", self._strike_process)
        hit = strike(fault)
        self.struck[fault.kind] += 1
        return str(hit)

    def keep_running(self) -> None:
        """Start the run again if it has ended by itself, which it should not."""
        if self.run.ended:
            self.ended_by_itself.append(self.run.wait().code)
            self.run = self._product.start()
        for future in self._under_repair.values():
            if future.done():
                future.result()

    def repaired(self) -> None:
        """Wait until broker and database are there again."""
        for future in self._under_repair.values():
            future.result(_REPAIRED_S)

    def outlived(self) -> list[str]:
        """Processes of runs that are over which are still there."""
        deadline = time.monotonic() + _OUTLIVED_S
        while (alive := list(filter(_lives, self._family))) and time.monotonic() < deadline:
            time.sleep(0.1)  # psutil's own wait raises, on some kernels, for what ends this moment
        return [str(process) for process in alive]

    def close(self) -> None:
        self._repairs.shutdown(wait=True, cancel_futures=True)

    # The kinds

    def _strike_run(self, fault: Fault) -> str:
        pid = self.run.pid
        self.remember()
        psutil.Process(pid).kill()
        self.run.wait()
        time.sleep(fault.pause_s)
        self.run = self._product.start()
        return f"process {pid}"

    def _strike_process(self, fault: Fault) -> str:
        def find() -> list[psutil.Process]:
            self.keep_running()
            return [one for one in self._processes(fault.kind) if one not in self._killed]

        found = wait_until(find, _APPEARS_S, f"a process of kind {fault.kind}")
        victim = found[int(fault.pick * len(found))]
        self._killed.add(victim)
        with suppress(psutil.NoSuchProcess):
            victim.kill()
        return f"process {victim.pid}, 1 of {len(found)}"

    def _strike_broker(self, fault: Fault) -> str:
        self._repair_first("broker")
        self._rabbitmq.kill()
        self._repair("broker", fault.pause_s, self._rabbitmq.start)
        return f"started again after {fault.pause_s:.1f} s"

    def _strike_postgres(self, fault: Fault) -> str:
        self._repair_first("postgres")
        self._postgres.kill()
        self._repair("postgres", fault.pause_s, self._postgres.start)
        return f"started again after {fault.pause_s:.1f} s"

    def _strike_cut(self, fault: Fault) -> str:
        return f"{self._wires.broker.cut()} connections"

    def _strike_sink_cut(self, fault: Fault) -> str:
        return f"{self._wires.database.cut()} connections"

    def _strike_sink_stall(self, fault: Fault) -> str:
        wire, cut = self._wires.database, fault.pick < 0.5
        self._repair_first(fault.kind)
        wire.stall()

        def resume() -> None:
            if cut:
                wire.cut()
            wire.resume()

        self._repair(fault.kind, fault.pause_s, resume)
        return f"for {fault.pause_s:.1f} s, then {'reset' if cut else 'on'}"

    def _strike_disk(self, fault: Fault) -> str:
        self._repair_first(fault.kind)
        size = self._machine.fill_disk()
        self._repair(fault.kind, fault.pause_s, self._machine.free_disk)
        return f"{size / 2**20:.0f} MiB, for {fault.pause_s:.1f} s"

    def _strike_clock(self, fault: Fault) -> str:
        step = _STEPS_S[int(fault.pick * len(_STEPS_S))]
        return f"by {step:+.0f} s; now {self._machine.step_clock(step):+.0f} s"

    # Below

    def remember(self) -> None:
        """Note the processes there are now: when the run is over, none of them may be left."""
        with suppress(psutil.NoSuchProcess):
            self._family.update(psutil.Process(self.run.pid).children(recursive=True))

    def _repair_first(self, kind: str) -> None:
        if kind in self._under_repair:
            self._under_repair[kind].result(_REPAIRED_S)

    def _repair(self, kind: str, pause_s: float, start: Callable[[], None]) -> None:
        def work() -> None:
            time.sleep(pause_s)
            start()

        self._under_repair[kind] = self._repairs.submit(work)

    def _processes(self, kind: str) -> list[psutil.Process]:
        """The processes of a kind, oldest first, as they stand in the process tree: also those that start."""
        with suppress(psutil.NoSuchProcess):
            run = psutil.Process(self.run.pid)
            if kind == "engine":
                return [one for one in run.children() if "signoff.engine" in _command(one)]
            if kind == "intake":
                return [one for one in run.children() if "signoff.intake" in _command(one)]
            jvms = [one for one in run.children(recursive=True) if _name(one) == "java"]
            if kind == "jvm":
                return jvms
            below = [one for jvm in jvms for one in jvm.children(recursive=True)]
            found = [one for one in below if _name(one).startswith("python")]
            return sorted(found, key=lambda one: (one.create_time(), one.pid))
        return []


def _lives(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


def _command(process: psutil.Process) -> list[str]:
    with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
        return list(process.cmdline())
    return []


def _name(process: psutil.Process) -> str:
    with suppress(psutil.NoSuchProcess):
        return str(process.name()) if _lives(process) else ""
    return ""
