"""Random batches, outcomes, retries, expiries, crashes, replays and folding, against a plain model.

After every step the account is the model's, the audit finds nothing, and no origin that was settled
is told otherwise: not by another look, not after a crash, not after folding.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from pyroaring import BitMap64

from signoff.errors import StateError
from signoff.ledger import (
    DeadLetter,
    DeadLetters,
    EventId,
    Follower,
    Ledger,
    Outcome,
    Resolution,
    RowOutcome,
    RowRef,
    close_letters,
    drop_letters,
)
from signoff.ledger.audit import audit_state
from signoff.ledger.batch_state import Done, OwesAll
from tests.ledger.model import Model

SOURCES = ("north", "south")
sources = st.sampled_from(["north", "north", "north", "south"])
KEEP = 2
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None

rows = st.sampled_from([("", "parsed"), ("", "table"), ("0", "table")])
"""Few, so that the same row meets several fates."""
fates = st.lists(
    st.sampled_from(
        [
            "deliver",
            "deliver",
            "owe",
            "owe",
            "dead_letter",
            "dead_letter",
            "dead_letter",
            "refuse",
            "drop",
            "fail",
        ]
    ),
    max_size=3,
)
REPORTED = {
    "dead_letter": Outcome.DEAD_LETTERED,
    "refuse": Outcome.REFUSED,
    "drop": Outcome.DROPPED,
    "fail": Outcome.FAILED,
}


class FakeLog:
    """A log of which only its length matters."""

    def __init__(self, length: int) -> None:
        self._length = length

    def head(self) -> int:
        return self._length

    scan = head

    def first(self) -> int:
        return 0

    def read(self, start: int, end: int, columns: Sequence[str]) -> list[object]:
        return []


class LedgerMachine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.state = Path(tempfile.mkdtemp(dir=MEMORY))
        self.models = {source: Model() for source in SOURCES}
        self.ledger: Ledger | None = None
        self.reopen()

    def reopen(self) -> None:
        if self.ledger:
            self.ledger.close()
            self.letters.close()
        self.ledger = Ledger(self.state / "ledger.db", keep_batches=KEEP)
        self.letters = DeadLetters(self.state / "dead_letters.db")
        self.followers = {source: Follower(self.ledger, source) for source in SOURCES}
        self.told: dict[str, dict[int, str]] = {source: {} for source in SOURCES}

    def teardown(self) -> None:
        if hasattr(self, "ledger"):
            self.audit_finds_nothing()
            self.ledger.close()
            self.letters.close()
            shutil.rmtree(self.state)

    # -- events and batches

    @rule(source=sources, count=st.integers(1, 3), data=st.data())
    def receive_and_open_a_batch(self, source: str, count: int, data: st.DataObject) -> None:
        model = self.models[source]
        model.receive(count)
        end = len(model.events) - data.draw(st.sampled_from([0, 0, 0, 1]), label="left in the log")
        if end > model.next:
            start = model.next
            model.open_batch(end)
            state = self.ledger.open_batch(source, start, end, ["table", "archive"])
            assert set(state.owed) == model.owed(start, end)
            assert state.settled == (not state.owed)

    @rule(data=st.data())
    @precondition(lambda self: any(model.batches for model in self.models.values()))
    def record_an_attempt(self, data: st.DataObject) -> None:
        source, (start, end) = self.choose_batch(data)
        model = self.models[source]
        delivered, owed, by_row = set(), set(), {}
        for number in range(start, end):
            for fate in data.draw(fates, label=f"fate of {number}"):
                if fate == "deliver":
                    delivered.add(number)
                if fate in ("owe", "fail"):
                    owed.add(number)
                if fate in REPORTED:
                    by_row[number, *data.draw(rows, label="row")] = REPORTED[fate]
        outcomes = [(*row, outcome) for row, outcome in by_row.items()]
        before = model.owed(start, end)
        self.letters.add(
            DeadLetter(str(EventId(source, n, child)), stage, "bad", b"{}")
            for n, child, stage, outcome in outcomes
            if outcome == Outcome.DEAD_LETTERED and n in before
        )
        if data.draw(st.sampled_from([False, False, False, True]), label="crash before the record"):
            self.reopen()
        model.record(start, end, delivered, outcomes, owed)
        state = self.ledger.record(
            source,
            start,
            end,
            delivered=BitMap64(delivered),
            outcomes=[RowOutcome(RowRef(n, child), stage, how, "bad") for n, child, stage, how in outcomes],
            sinks={"table": OwesAll(attempts=1) if owed else Done(attempts=1)},
            owed=BitMap64(owed),
        )
        assert set(state.owed) == model.owed(start, end)

    @rule(data=st.data())
    @precondition(lambda self: any(model.batches for model in self.models.values()))
    def record_and_record_again(self, data: st.DataObject) -> None:
        """Rules are drawn evenly; attempts at the same batch are what most happens to a ledger."""
        for _ in range(3):
            self.record_an_attempt(data)

    @rule(data=st.data())
    @precondition(lambda self: any(model.batches for model in self.models.values()))
    def open_a_batch_again(self, data: st.DataObject) -> None:
        source, (start, end) = self.choose_batch(data)
        state = self.ledger.open_batch(source, start, end, ["table", "archive"])
        assert set(state.owed) == self.models[source].owed(start, end)
        after = self.models[source].next
        for wrong in ((start, after + 1), (after + 1, after + 2)):
            try:
                self.ledger.open_batch(source, *wrong, [])
            except StateError:
                continue
            raise AssertionError(f"{wrong} was accepted")

    @rule(source=sources, data=st.data())
    def expire_some(self, source: str, data: st.DataObject) -> None:
        model = self.models[source]
        if not model.events:
            return
        numbers = data.draw(st.sets(st.integers(0, len(model.events) - 1), max_size=4), label="expired")
        expired = self.followers[source].expire(dict.fromkeys(numbers, "too slow"))
        assert set(expired) == model.expire(numbers)
        self.remember(source, dict.fromkeys(expired, "expired"))

    # -- telling the source

    @rule(source=sources, crash=st.booleans())
    def tell_the_source(self, source: str, crash: bool) -> None:
        settled = self.followers[source].poll()
        if settled:
            self.remember(source, dict.fromkeys(settled.acknowledged, "acknowledged"))
            self.remember(source, dict.fromkeys(settled.refused, "refused"))
            self.remember(source, dict.fromkeys(settled.expired, "expired"))
            if crash:
                self.reopen()
            self.followers[source].confirm()
        model = self.models[source]
        if not crash:
            due = {n for n, event in enumerate(model.events) if event.settled}
            assert set(self.told[source]) == due
            assert self.followers[source].poll() is None

    def remember(self, source: str, told: dict[int, str]) -> None:
        events = self.models[source].events
        for number, answer in told.items():
            assert number not in self.told[source], "told twice"
            assert events[number].told == answer
        self.told[source].update(told)

    @rule()
    def crash(self) -> None:
        self.reopen()

    # -- dead letters

    @rule(
        data=st.data(), outcome=st.sampled_from([Outcome.DELIVERED, Outcome.DROPPED, Outcome.DEAD_LETTERED])
    )
    @precondition(lambda self: self.letters.count())
    def replay_a_letter(self, data: st.DataObject, outcome: Outcome) -> None:
        letter = self.choose_letter(data)
        self.letters.request_replay([letter])
        further = []
        if outcome != Outcome.DEAD_LETTERED and data.draw(st.booleans(), label="fails at a later stage"):
            further = [DeadLetter(letter.event_id, "later", "bad", b"{}")]
        resolution = Resolution(letter.event_id, letter.stage, outcome, "still bad")
        if self.counts(letter):
            for other in further:
                self.resolve(other, Outcome.DEAD_LETTERED)
            self.resolve(letter, outcome)
        if data.draw(st.booleans(), label="crash between ledger and letters"):
            self.letters.add(further)
            new = [Resolution(other.event_id, other.stage, Outcome.DEAD_LETTERED, "bad") for other in further]
            self.ledger.resolve([*new, resolution])
            self.reopen()
        else:
            close_letters(self.ledger, self.letters, [resolution], further)
            closed = "stored" if outcome == Outcome.DEAD_LETTERED else "replayed"
            assert self.letters.get(letter.event_id, letter.stage)[0].status == closed

    @rule(data=st.data())
    @precondition(lambda self: self.letters.count())
    def drop_a_letter(self, data: st.DataObject) -> None:
        letter = self.choose_letter(data)
        if letter.status == "replaying":
            self.letters.withdraw([letter])
            letter = self.letters.get(letter.event_id, letter.stage)[0]
        assert drop_letters(self.ledger, self.letters, [letter]) == 1
        if self.counts(letter):
            self.resolve(letter, Outcome.DROPPED)

    def counts(self, letter: DeadLetter) -> bool:
        """Whether the ledger has the row of this letter: it was recorded before somebody crashed."""
        event = self.models[letter.source].events[letter.sequence]
        kept = letter.sequence >= self.ledger.folded_upto(letter.source)
        dead = any(row.outcome == Outcome.DEAD_LETTERED for row in event.rows.values())
        return (kept and dead) or (event.settled and event.outcome == Outcome.DEAD_LETTERED)

    def resolve(self, letter: DeadLetter, outcome: Outcome) -> None:
        self.models[letter.source].resolve(letter.sequence, letter.child, letter.stage, outcome)

    # -- what always holds

    @invariant()
    def account_is_the_models(self) -> None:
        for source, model in self.models.items():
            account = self.ledger.account(source, len(model.events))
            assert account == model.account()
            assert account.balanced
            assert self.ledger.settled_upto(source) == model.settled_upto()
            assert self.ledger.books(source).ignored == model.ignored

    @rule()
    def audit_finds_nothing(self) -> None:
        lengths = {source: len(model.events) for source, model in self.models.items()}
        report = audit_state(self.state, SOURCES, lambda directory: FakeLog(lengths[directory.name]))
        assert not report.findings
        assert report.balanced

    def choose_batch(self, data: st.DataObject) -> tuple[str, tuple[int, int]]:
        known = [(name, batch) for name, model in self.models.items() for batch in model.batches]
        still_open = [(name, batch) for name, batch in known if self.models[name].owed(*batch)]
        prefer = data.draw(st.integers(0, 3), label="prefer an open one")
        return data.draw(st.sampled_from(still_open if still_open and prefer else known), label="batch")

    def choose_letter(self, data: st.DataObject) -> DeadLetter:
        return data.draw(st.sampled_from(self.letters.list()), label="letter")


TestLedgerAgainstModel = LedgerMachine.TestCase
TestLedgerAgainstModel.settings = settings(
    max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
