"""The audit: proves from log, ledger and dead letters that every event received is accounted for.

The account of each source must add up, and so must what it is made of:
- batches follow each other from 0 without gap, and each one's counts and debts add up to its range;
- its counts are those that its recorded rows give when they are counted again;
- the log has received at least what the ledger has taken, and still holds, undamaged, what is not settled;
- every row that counts as a dead letter has its letter.

It reads while a run goes on. The files are read one after the other, so what looks wrong while
somebody writes is looked at again before it is called a finding.
"""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from signoff.errors import LogError
from signoff.ledger.batches import classify
from signoff.ledger.dead_letters import DeadLetters
from signoff.ledger.ledger import Ledger
from signoff.ledger.outcome import BUFFER, FINAL, Account, EventId
from signoff.ledger.sequences import count_between, from_bytes, from_range
from signoff.ledger.source_totals import books_of
from signoff.pipeline.graph import Graph

_LOOKS = 5


class LogView(Protocol):
    """What the audit needs of a log; `signoff.log.LogReader` is one. The ledger does not know the log."""

    def head(self) -> int: ...
    def scan(self) -> int: ...
    def first(self) -> int: ...
    def read(self, start: int, end: int, columns: Sequence[str]) -> Iterable[object]: ...


OpenLog = Callable[[Path], LogView]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that does not add up."""

    source: str
    code: str
    text: str

    def __str__(self) -> str:
        return f"{self.source} [{self.code}] {self.text}"


@dataclass(frozen=True, slots=True)
class Audit:
    """The accounts of all sources, and what is wrong with them."""

    accounts: dict[str, Account]
    findings: tuple[Finding, ...]
    ignored: dict[str, int]
    """Outcomes that came for events settled already, by source: ignored, as they must be."""
    stranded: tuple[str, ...] = ()
    """Sources that are not in the pipeline any more, and whose events are not all settled."""

    @property
    def balanced(self) -> bool:
        return not self.findings and all(account.balanced for account in self.accounts.values())

    @property
    def sources(self) -> dict[str, Account]:
        return {name: account for name, account in self.accounts.items() if not name.endswith(BUFFER)}

    @property
    def buffers(self) -> dict[str, Account]:
        """The rows that went through buffers; they are not events received, and not part of the total."""
        return {name: account for name, account in self.accounts.items() if name.endswith(BUFFER)}

    @property
    def total(self) -> Account:
        """All sources together."""
        parts = [account.as_dict() for account in self.sources.values()]
        return Account(**{name: sum(part[name] for part in parts) for name in Account().as_dict()})

    def as_dict(self) -> dict[str, Any]:
        sources = {name: account.as_dict() for name, account in self.sources.items()}
        buffers = {name: account.as_dict() for name, account in self.buffers.items()}
        return {"sources": sources, "buffers": buffers, "balanced": self.balanced, "ignored": self.ignored,
                "stranded": list(self.stranded)}  # fmt: skip


def audit(graph: Graph, open_log: OpenLog) -> Audit:
    """Audit a pipeline: `audit(graph, LogReader)`. Changes nothing."""
    return audit_state(graph.state, list(graph.sources), open_log)


def audit_state(state: Path, sources: Sequence[str], open_log: OpenLog) -> Audit:
    """Audit a state directory, which may be in use or not exist yet.

    Sources that are only in the ledger or on disk, because the pipeline was changed, are part of the account,
    and so are buffers whose rows are in no batch yet.
    """
    with (
        Ledger(state / "ledger.db", readonly=True) as ledger,
        DeadLetters(state / "dead_letters.db", readonly=True) as letters,
    ):
        on_disk = sorted(path.name for path in (state / "log").glob("*") if path.is_dir())
        names = list(dict.fromkeys([*sources, *ledger.sources(), *on_disk]))
        accounts, findings, ignored = {}, [], {}
        for name in names:
            log = open_log(state / "log" / name)
            accounts[name], found, ignored[name] = _settle_doubts(ledger, letters, name, log)
            findings += found
        gone = [name for name in names if name not in sources and not name.endswith(BUFFER)]
        stranded = tuple(name for name in gone if accounts[name].in_flight)
        return Audit(accounts, tuple(findings), ignored, stranded)


def _settle_doubts(
    ledger: Ledger, letters: DeadLetters, source: str, log: LogView
) -> tuple[Account, list[Finding], int]:
    for _ in range(_LOOKS):
        version = (ledger.version(), letters.version())
        result = _audit_source(ledger, letters, source, log)
        if not result[1] or version == (ledger.version(), letters.version()):
            break
    return result


def _audit_source(
    ledger: Ledger, letters: DeadLetters, source: str, log: LogView
) -> tuple[Account, list[Finding], int]:
    with ledger.store.read() as db:
        books = books_of(db, source)
        found = list(_check_batches(db, source))
        owing = _dead_rows(db, source)
    needed = ledger.needed_from(source)
    received = _received(log, books.next)  # after the books: it can only have grown since
    account = books.account(received)
    found += _check_log(log, source, received, books.next, needed)
    there = {EventId.parse(letter).source for letter, _ in owing}
    missing = sorted(owing.difference(*(letters.keys(source=each) for each in there)))
    found += [
        Finding(source, "letter-missing", f"letter {letter}, of a row that ended at {stage}, is gone")
        for letter, stage in missing
    ]
    if not account.balanced and not found:
        found.append(Finding(source, "unbalanced", f"the account does not add up: {account.as_dict()}"))
    return account, found, books.ignored


def _received(log: LogView, known: int) -> int:
    head = log.head()
    return head if head >= known else max(head, log.scan())  # the head file may lag after a power cut


def _check_log(log: LogView, source: str, received: int, taken: int, needed: int) -> Iterator[Finding]:
    if received < taken:
        text = f"the log ends at {received}, but the ledger has batches up to {taken}: was the log removed?"
        yield Finding(source, "log-behind", text)
    elif needed < received and log.first() > needed:
        text = f"events from {needed} on are not settled, but the log begins at {log.first()}"
        yield Finding(source, "log-trimmed", text)
    else:
        try:
            deque(log.read(needed, received, []), maxlen=0)
        except LogError as error:
            yield Finding(source, "log-corrupt", str(error))


def _check_batches(db: sqlite3.Connection, source: str) -> Iterator[Finding]:
    totals = db.execute("SELECT * FROM sources WHERE source = ?", (source,)).fetchone()
    if totals is None:
        return
    position = totals["folded"]
    if (counted := sum(totals[outcome] for outcome in FINAL)) != position:
        yield Finding(source, "fold", f"{position} events are folded, their counts add up to {counted}")
    for batch in db.execute("SELECT * FROM batches WHERE source = ? ORDER BY start", (source,)).fetchall():
        start, end = batch["start"], batch["end"]
        if start != position:
            yield Finding(source, "gap", f"batch [{start}, {end}) should begin at {position}")
        position = end
        yield from _check_batch(db, source, batch)
    if position != totals["next"]:
        text = f"the batches end at {position}, the next one is to begin at {totals['next']}"
        yield Finding(source, "gap", text)


def _check_batch(db: sqlite3.Connection, source: str, batch: sqlite3.Row) -> Iterator[Finding]:
    start, end, name = batch["start"], batch["end"], f"batch [{batch['start']}, {batch['end']})"
    owed = from_bytes(batch["owed"])
    if count_between(owed, start, end) != len(owed) or len(owed) != batch["owed_count"]:
        text = f"{name} owes {batch['owed_count']} events, its set holds {len(owed)}"
        yield Finding(source, "owed", text)
    stored = {outcome: batch[outcome] for outcome in FINAL}
    if (total := sum(stored.values()) + len(owed)) != end - start:
        yield Finding(source, "batch-sum", f"{name} holds {end - start} events, {total} are accounted for")
    settled = from_range(start, end) - owed
    counted = classify(db, source, start, end, settled, from_bytes(batch["delivered_set"]))
    for outcome in FINAL:
        if counted[outcome] != stored[outcome]:
            text = f"{name} has {stored[outcome]} {outcome}, its rows give {counted[outcome]}"
            yield Finding(source, "batch-count", text)


def _dead_rows(db: sqlite3.Connection, source: str) -> set[tuple[str, str]]:
    """The letters that stand for rows of a source: id and stage."""
    found = db.execute(
        "SELECT sequence, child, stage, letter FROM exceptions "
        "WHERE source = ? AND outcome = 'dead_lettered' AND resolved = ''",
        (source,),
    )
    return {
        (letter or str(EventId(source, sequence, child)), stage) for sequence, child, stage, letter in found
    }
