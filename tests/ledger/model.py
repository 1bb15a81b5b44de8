"""The ledger in plain Python: what it should say, kept as one object per event and no cleverness."""

from __future__ import annotations

from dataclasses import dataclass, field

from signoff.ledger import Account, Outcome

RANK = {Outcome.FAILED: 0, Outcome.DROPPED: 1, Outcome.DEAD_LETTERED: 2, Outcome.REFUSED: 3}


@dataclass
class Row:
    outcome: Outcome
    resolved: str = ""


@dataclass
class Event:
    settled: bool = False
    expired: bool = False
    delivered: bool = False
    rows: dict[tuple[str, str], Row] = field(default_factory=dict)
    told: str | None = None
    """What the source has to be told, fixed at the moment of settlement."""

    @property
    def outcome(self) -> Outcome:
        standing = {row.outcome for row in self.rows.values() if not row.resolved}
        if self.expired:
            return Outcome.EXPIRED
        for outcome in (Outcome.REFUSED, Outcome.DEAD_LETTERED):
            if outcome in standing:
                return outcome
        return Outcome.DELIVERED if self.delivered else Outcome.DROPPED

    def settle(self) -> None:
        self.settled = True
        final = self.outcome
        self.told = final.value if final in (Outcome.REFUSED, Outcome.EXPIRED) else "acknowledged"


@dataclass
class Model:
    """One source."""

    events: list[Event] = field(default_factory=list)
    next: int = 0
    batches: list[tuple[int, int]] = field(default_factory=list)
    ignored: int = 0

    def receive(self, count: int) -> None:
        self.events += [Event() for _ in range(count)]

    def open_batch(self, end: int) -> None:
        self.batches.append((self.next, end))
        self.next = end

    def owed(self, start: int, end: int) -> set[int]:
        return {n for n in range(start, end) if not self.events[n].settled}

    def record(
        self,
        start: int,
        end: int,
        delivered: set[int],
        outcomes: list[tuple[int, str, str, Outcome]],
        owed: set[int],
    ) -> None:
        before = self.owed(start, end)
        self.ignored += len(delivered - before) + sum(n not in before for n, *_ in outcomes)
        for n in delivered & before:
            self.events[n].delivered = True
        if before:
            for event in self.events[start:end]:
                event.rows = {key: row for key, row in event.rows.items() if row.outcome != Outcome.FAILED}
        for n, child, stage, outcome in outcomes:
            if n in before:
                known = self.events[n].rows.get((child, stage))
                if known is None or RANK[outcome] >= RANK[known.outcome]:
                    self.events[n].rows[child, stage] = Row(outcome)
        for n in before - owed:
            self.events[n].settle()

    def expire(self, numbers: set[int]) -> set[int]:
        taken = {n for n in numbers if not self.events[n].settled}
        for n in taken:
            self.events[n].expired = True
            self.events[n].settle()
        return taken

    def resolve(self, n: int, child: str, stage: str, outcome: Outcome) -> None:
        event = self.events[n]
        row = event.rows.get((child, stage))
        if outcome == Outcome.DEAD_LETTERED:
            if row is None or row.outcome in (Outcome.DEAD_LETTERED, Outcome.DROPPED):
                event.rows[child, stage] = Row(Outcome.DEAD_LETTERED)
        elif row and row.outcome == Outcome.DEAD_LETTERED and row.resolved in ("", "dropped"):
            row.resolved = outcome.value
            event.delivered |= outcome == Outcome.DELIVERED

    def account(self) -> Account:
        settled = [event.outcome for event in self.events if event.settled]
        counts = {name: settled.count(Outcome(name)) for name in _FINAL}
        return Account(len(self.events), **counts, in_flight=len(self.events) - len(settled))

    def settled_upto(self) -> int:
        return next((n for n in range(self.next) if not self.events[n].settled), self.next)


_FINAL = ("delivered", "dropped", "dead_lettered", "refused", "expired")
