"""Random pipelines, outcomes, expiries, kills and restarts: settlement against a reference model.

Each run is a seed. It makes a pipeline (`settlement_model`), runs the real engine on it without Spark
(`simulated_run`) by a random schedule, with kills at random places, and at the end lets all sinks work. At
every step the account adds up, and nobody is told anything too early, twice, or otherwise than before. In the
end every event has the outcome that the model says, every sink holds what it must and nothing else, nobody
owes anything, and the audit finds nothing.

    pytest tests/engine/test_settlement_model.py                           some hundred runs, in seconds
    SIGNOFF_MODEL_RUNS=5000 pytest tests/engine/test_settlement_model.py   more of them
    SIGNOFF_MODEL_SEED=123 pytest tests/engine/test_settlement_model.py    one again, with its story
"""

from __future__ import annotations

import logging
import os
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyroaring import BitMap64

from signoff.ledger import Outcome
from signoff.ledger.audit import audit_state
from signoff.link.notes import LinkNotes
from signoff.log import LogReader
from signoff.sinks.contract import BatchRef
from tests.engine.settlement_model import RANK, Arrival, Model, World, random_world
from tests.engine.simulated_run import Killed, Machine, Outside, Query, fill_logs, machine_directory

RUNS = int(os.environ.get("SIGNOFF_MODEL_RUNS", "150"))
SEED = os.environ.get("SIGNOFF_MODEL_SEED")
FAILED = (
    200156,  # a row waited for a step behind a merge, and was lost when a step in front of it failed
    200046,  # of two inputs of a sink one came through the other: its rows were written again with those owed
    200244,  # events wait for another pipeline also beside an authoritative sink
)
"""Seeds that failed once."""
_BLOCK = 25
"""Runs that are one test, so that several processes share them."""
_STEPS = 30
_ENOUGH = 400
"""Rounds in which everything must have come to an end when nothing fails any more."""


def blocks(runs: int, size: int) -> list[Any]:
    """Numbers of blocks of runs; `make quick` does the first block only."""
    count = 1 if SEED else (runs + size - 1) // size
    return [pytest.param(block, marks=[pytest.mark.thorough] if block else []) for block in range(count)]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


class Run:
    """One seed."""

    def __init__(self, seed: int, directory: Path) -> None:
        self.rng = random.Random(seed)
        random.seed(seed)  # of the jitter between two tries
        self.world: World = random_world(seed)
        self.model = Model(self.world)
        self.outside = Outside(self.world, self.rng, verbose=SEED is not None, disk=random.Random(seed))
        self.directory = directory
        self.deadly = self.rng.random() < 0.7
        """Whether anything is killed."""
        self.expires = self.rng.random() < 0.4
        self.renames = random.Random(f"renames {seed}")
        fill_logs(self.world, directory / "state")
        self.machine = Machine(self.outside, directory, self.rng)

    def go(self) -> None:
        self.restart()
        try:
            for _ in range(_STEPS):
                self.attempt(self.random_action())
                if self.rng.random() < 0.5:
                    self.poll(self.rng.choice(self.world.sources).name)
                self.check_books()
            self.settle_all()
            self.check_end()
        finally:
            self.machine.end()

    # -- the schedule

    def attempt(self, action: str) -> None:
        """Do something; a kill may come in between."""
        machine = self.machine
        if self.deadly and self.rng.random() < 0.15:
            machine.fuse = self.rng.randint(1, 12)
        if self.rng.random() < 0.1:
            machine.loss = self.rng.randint(1, 6)
        if self.rng.random() < 0.3:
            between = self.rng.choice(("take", "retry", "tend", "expire", "poll"))
            machine.meanwhile = None if between == action else lambda: self.act(between)
        try:
            self.act(action)
        except Killed:
            self.restart(killed=True)
        else:
            machine.fuse = machine.loss = machine.meanwhile = None

    def random_action(self) -> str:
        actions = (
            "take",
            "take",
            "take",
            "retry",
            "retry",
            "tend",
            "answer",
            "tidy",
            "poll",
            "expire",
            "weather",
            "intake",
        )
        return self.rng.choice(actions)

    def act(self, action: str) -> None:
        query = self.rng.choice(list(self.machine.queries.values()))
        source = self.rng.choice(self.world.sources).name
        if action == "take":
            self.take(query, self.rng.randint(1, 5))
        elif action == "retry":
            self.machine.clock.now += self.rng.choice((0.0, 1.0, 6.0))
            self.note(f"retry {query.source}")
            query.parking.retry()
        elif action == "tend":
            self.tend()
        elif action == "answer":
            self.answer(0.5)
        elif action == "tidy":
            self.tidy()
        elif action == "poll":
            self.poll(source)
        elif action == "expire" and self.expires:
            self.expire(source)
        elif action == "weather":
            self.weather()
        elif action == "intake":
            self.restart_intake()

    def take(self, query: Query, most: int) -> None:
        start = self.machine.ledger.books(query.source).next
        end = min(query.log.head(), start + most)
        if end > start and query.parking.may_take(end - start, most):
            self.note(f"take {query.source} [{start}, {end})")
            query.parking.take(BatchRef(query.source, start, end))

    def tend(self) -> None:
        self.note("tend")
        for feedback in self.machine.feedback:
            feedback.tend()

    def tidy(self) -> None:
        for query in self.machine.queries.values():
            query.tidy()
        for feedback in self.machine.feedback:
            feedback.tidy()

    def weather(self) -> None:
        for sink in self.world.sinks:
            if sink.outages and self.rng.random() < 0.5:
                self.outside.down ^= {sink.name}
            if self.rng.random() < 0.2:
                self.outside.full ^= {f"{sink.name}.buffer"}
        self.outside.no_room = self.outside.disk.choice((0.0, 0.0, 0.5))
        self.note(f"down: {sorted(self.outside.down)}, full: {sorted(self.outside.full)}")

    def answer(self, share: float) -> None:
        """Another pipeline settles some of what it was given."""
        for sink in self.world.sinks:
            place = self.directory / "links" / sink.name
            if sink.kind != "pipeline" or not (place / "link.db").exists():
                continue
            known = self.outside.answered.setdefault(sink.name, {})
            log = LogReader(place / "log")
            waiting = [n for n in range(log.head()) if n not in known]
            chosen = [n for n in waiting if self.rng.random() < share]
            if not chosen:
                continue
            events = log.lookup(chosen)
            refused = {}
            for number in chosen:
                row = str(events[number]["message_id"])
                again = row in known.values()
                self.check_handed(sink.name, row, again)
                known[number] = row
                if self.world.refuses(sink, row):
                    refused[number] = ("no", False)
                else:
                    self.outside.held.setdefault(sink.name, {})[row] = row
            notes = LinkNotes(place / "link.db")
            notes.answer(BitMap64(chosen), refused)
            notes.close()
            self.note(f"{sink.name} answers {chosen}")

    def check_handed(self, sink: str, row: str, again: bool) -> None:
        assert not again, f"{row} was handed on to {sink} twice"

    def note(self, text: str) -> None:
        self.outside.story.append(text)

    # -- kills

    def restart(self, *, killed: bool = False) -> None:
        while True:
            if killed:
                self.outside.kills += 1
                self.machine.end()
                self.check_audit()
                self.rename_a_sink()
                self.machine = Machine(self.outside, self.directory, self.rng)
                if self.rng.random() < 0.2:
                    self.machine.fuse = self.rng.randint(1, 5)
            try:
                self.machine.start()
            except Killed:
                killed = True
                continue
            self.machine.fuse = None
            return

    def rename_a_sink(self) -> None:
        """Between two runs a sink that publishes batches is renamed; its directory stays."""
        may = [s for s in self.world.sinks if s.kind == "batches" and not self.model.hands_on(s)]
        if may and self.renames.random() < 0.3:
            sink = self.renames.choice(may)
            self.note(f"{sink.name} is called {sink.name.swapcase()} now")
            self.world.rename_sink(sink)
            self.outside.down |= {s.name for s in self.world.sinks if s.kept_at == sink.kept_at} & {
                name.swapcase() for name in self.outside.down
            }
            self.model = Model(self.world)

    def restart_intake(self) -> None:
        self.machine.restart_intakes()

    # -- the intake

    def poll(self, source: str) -> None:
        follower = self.machine.followers[source]
        settled = follower.poll()
        if settled is None:
            return
        for number in settled.acknowledged:
            self.tell(source, int(number), "acknowledged")
            self.check_acknowledged(source, int(number))
        for number in settled.refused:
            self.tell(source, number, "refused")
        for number in settled.expired:
            self.tell(source, number, "expired")
        follower.confirm()

    def expire(self, source: str) -> None:
        number = self.rng.randrange(LogReader(self.directory / "state" / "log" / source).head())
        for expired in self.machine.followers[source].expire({number: "too late"}):
            self.note(f"{source}/{expired} expires")
            self.tell(source, expired, "expired")

    def tell(self, source: str, number: int, what: str) -> None:
        event = (source, number)
        assert event not in self.machine.told, f"{source}/{number} is told twice"
        self.machine.told.add(event)
        before = self.outside.told.setdefault(event, what)
        assert before == what, f"{source}/{number} was {before}, and is {what} now"

    # -- the end

    def settle_all(self) -> None:
        """Nothing fails any more; all must come to its end."""
        self.outside.down.clear()
        self.outside.full.clear()
        self.outside.no_room = 0.0
        for _ in range(_ENOUGH):
            for query in self.machine.queries.values():
                self.machine.clock.now += 3.0
                self.take(query, 5)
                query.parking.retry()
            self.tend()
            self.answer(1.0)
            if self.done():
                self.tend()
                return
        owing = {q.source: self.machine.ledger.open_batches(q.source) for q in self.machine.queries.values()}
        raise AssertionError(f"it never ends: {owing}")

    def done(self) -> bool:
        ledger = self.machine.ledger
        return all(
            ledger.settled_upto(query.source) >= query.log.head() and not len(query.parking)
            for query in self.machine.queries.values()
        )

    # -- what must hold

    def check_books(self) -> None:
        for query in self.machine.queries.values():
            account = self.machine.ledger.books(query.source).account(query.log.head())
            assert account.balanced, f"{query.source}: {account}"

    def check_audit(self) -> None:
        found = audit_state(self.directory / "state", [s.name for s in self.world.sources], LogReader)
        assert found.balanced, [str(finding) for finding in found.findings]

    def check_acknowledged(self, source: str, number: int) -> None:
        """Every place the event was going has signed for it."""
        if self.model.given_up(source, number):
            return  # some rows may not have come to their sinks
        for arrival in self.model.rows_of(source, number):
            sink = self.model.sinks[arrival.sink]
            if self.model.may_lose(sink) or self.model.at_sink(sink, arrival.id) != {"delivered"}:
                continue
            if arrival.id in self.outside.rows(arrival.sink):
                continue
            assert not self.model.awaited(sink, source), f"{arrival} is acknowledged, and the sink lacks it"
            assert arrival.id in self.in_links(arrival.sink), f"{arrival} is acknowledged, and it is nowhere"

    def in_links(self, sink: str) -> set[str]:
        logs = (self.directory / "state" / "log" / f"{sink}.buffer", self.directory / "links" / sink / "log")
        found = set()
        for log in map(LogReader, logs):
            for _, events in log.read(log.first(), log.head(), ["message_id"]):
                found |= set(events.column("message_id").to_pylist())
        return found

    def check_end(self) -> None:
        self.check_audit()
        self.check_tellings()
        outcomes = {s.name: self.outcomes(s.name, s.events) for s in self.world.sources}
        for source in self.world.sources:
            for number in range(source.events):
                self.check_outcome(source.name, number, outcomes[source.name][number])
        self.check_sinks(outcomes)
        self.check_leftovers()

    def check_tellings(self) -> None:
        for source in self.world.sources:
            self.poll(source.name)
            told = {number for name, number in self.machine.told if name == source.name}
            assert told == set(range(source.events)), (
                f"{source.name}: not told {set(range(source.events)) - told}"
            )
        self.machine.restart_intakes()
        for source in self.world.sources:
            self.poll(source.name)  # a new process tells all again, and says the same

    def outcomes(self, source: str, events: int) -> list[str]:
        """What each event counts as, from the ledger; the counts must be those of its account."""
        ledger = self.machine.ledger
        delivered = ledger.delivered(source, 0, events)
        folded = ledger.folded_upto(source)
        found = []
        for number in range(events):
            rows = {str(row.outcome) for row in ledger.rows(source, number)} - {"failed"}
            base = "delivered" if number in delivered else "dropped"
            worst = max({base, *rows} - {"dropped"} or {"dropped"}, key=RANK.index)
            found.append(worst)
        counts = Counter(found)
        account = ledger.books(source).account(events).as_dict()
        if not folded:  # what is folded counts as dropped there, and may have been delivered, or not
            assert {o.value: counts[o.value] for o in Outcome if o != "failed"} == {
                o.value: account[o.value] for o in Outcome if o != "failed"
            }
        return found

    def check_outcome(self, source: str, number: int, outcome: str) -> None:
        allowed = set(self.model.outcomes(source, number))
        told = self.outside.told[source, number]
        if told == "expired":
            allowed = {"expired"}
        assert told == (outcome if outcome in ("refused", "expired") else "acknowledged")
        if self.machine.ledger.folded_upto(source) > number and outcome == "delivered":
            return  # of what is folded it is not known whether it was delivered or dropped
        assert outcome in allowed, f"{source}/{number} is {outcome}, must be {sorted(allowed)}"

    def check_sinks(self, outcomes: dict[str, list[str]]) -> None:
        must: dict[str, dict[str, Arrival]] = {name: {} for name in self.model.sinks}
        may: dict[str, dict[str, Arrival]] = {name: {} for name in self.model.sinks}
        for source in self.world.sources:
            for number in range(source.events):
                certain = not self.model.given_up(source.name, number)
                outcome = outcomes[source.name][number]
                certain &= outcome != "expired" and not (source.fail_fast and outcome == "refused")
                for arrival in self.model.rows_of(source.name, number):
                    sink = self.model.sinks[arrival.sink]
                    fates = self.model.at_sink(sink, arrival.id)
                    if "delivered" in fates:
                        may[arrival.sink][arrival.id] = arrival
                        if certain and fates == {"delivered"} and not self.model.may_lose(sink):
                            must[arrival.sink][arrival.id] = arrival
        for name, sink in self.model.sinks.items():
            rows = self.outside.rows(name)
            assert rows.keys() >= must[name].keys(), f"{name} lacks {sorted(must[name].keys() - rows.keys())}"
            assert rows.keys() <= may[name].keys(), f"{name} holds {sorted(rows.keys() - may[name].keys())}"
            for row, value in rows.items():
                plain = may[name][row].plain
                assert sink.kind == "pipeline" or value == f"value of {plain[0]}/{plain[1]}/{plain[2]}"
        if not self.outside.kills and not any("worker lost" in line for line in self.outside.story):
            twice = {what: times for what, times in self.outside.taken.items() if times > 1}
            assert not twice, f"written again although nobody was killed: {twice}"

    def check_leftovers(self) -> None:
        assert not list((self.directory / "state").glob("receipts/*")), "receipts are left"
        for feedback in self.machine.feedback:
            # One that was noted, and not appended before the kill, is replaced by the next.
            left = [handed for handed in feedback._notes.each() if handed.last <= feedback._log.head()]
            assert not left, f"a link still waits for answers: {left}"


def run(seed: int, directory: Path) -> None:
    """One run; what fails says its seed, and how to have it again."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    one = Run(seed, directory)
    try:
        one.go()
    except Exception as error:
        pipeline = "\n  ".join(map(str, (*one.world.sources, *one.world.steps, *one.world.sinks)))
        story = "\n  ".join(one.outside.story)
        raise AssertionError(
            f"SIGNOFF_MODEL_SEED={seed}: {error!r}\n\npipeline:\n  {pipeline}\n\nwhat happened:\n  {story}"
        ) from error


@pytest.mark.parametrize("block", blocks(RUNS, _BLOCK))
def test_random_runs_settle_every_event_as_the_model_says(block: int) -> None:
    seeds = [int(SEED)] if SEED else range(block * _BLOCK, min((block + 1) * _BLOCK, RUNS))
    with machine_directory() as directory:
        for seed in seeds:
            run(seed, directory / "run")


@pytest.mark.skipif(SEED is not None, reason="one seed was asked for")
@pytest.mark.parametrize("seed", FAILED)
def test_a_run_that_failed_once_does_not_fail_again(seed: int) -> None:
    with machine_directory() as directory:
        run(seed, directory / "run")
