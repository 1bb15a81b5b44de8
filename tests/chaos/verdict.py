"""The verdict: what was published against what is in the tables, the dead letters, the queues, the account.

Every confirmed message is exactly once in every table, or, malformed, exactly once among the dead letters
and in no table. Every message that is *perhaps* there is so at most once, and in all tables or none.
Nothing else is anywhere, and the account says the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.chaos import messages

SHOWN = 10
Row = tuple[str, str | None, int | None, str | None]
"""event_id, message_id, n, text."""


@dataclass(frozen=True)
class Finding:
    """One kind of thing that is wrong, and where it is."""

    what: str
    where: tuple[str, ...] = ()

    def __str__(self) -> str:
        more = f" and {len(self.where) - SHOWN} more" if len(self.where) > SHOWN else ""
        named = ", ".join(self.where[:SHOWN])
        return f"{self.what}: {named}{more}" if self.where else self.what


@dataclass(frozen=True)
class Evidence:
    """What there is when everything is over."""

    confirmed: set[int]
    perhaps: set[int]
    tables: Mapping[str, Iterable[Row]]
    letters: Iterable[Mapping[str, Any]]
    """As `signoff dead-letters list --json` prints them."""
    queues: Mapping[str, int]
    """Messages that wait, with no consumer left."""
    audit: Mapping[str, Any]
    """As `signoff audit --json` prints it."""
    audit_code: int
    log_head: int
    """How many messages are in the log."""


def judge(evidence: Evidence) -> list[Finding]:
    """All that is wrong; empty when everything is as promised."""
    published = evidence.confirmed | evidence.perhaps
    good = {number for number in published if not messages.is_malformed(number)}
    bad = published - good
    found: list[Finding] = []
    events: dict[str, dict[int, str]] = {}
    for name, rows in evidence.tables.items():
        counts, events[name], wrong = _count(rows)
        found += _compare(f"in {name}", counts, good & evidence.confirmed, good)
        if wrong:
            found.append(Finding(f"not as published in {name}", tuple(wrong)))
    letters, strange = _count_letters(evidence.letters, bad)
    found += _compare("among the dead letters", letters, bad & evidence.confirmed, bad)
    if strange:
        found.append(Finding("dead letters of messages that are not malformed", tuple(strange)))
    found += _disagreements(events)
    found += [
        Finding(f"{waiting} messages are left in queue {name}")
        for name, waiting in evidence.queues.items()
        if waiting
    ]
    found += _account(evidence, len(next(iter(events.values()))), letters.total())
    return found


def _count(rows: Iterable[Row]) -> tuple[Counter[int], dict[int, str], list[str]]:
    """How often each message is in a table, its event, and rows that are not as they were published."""
    counts: Counter[int] = Counter()
    events: dict[int, str] = {}
    wrong = []
    for event, message, n, text in rows:
        number = messages.number_of(message)
        if number is None or (n, text) != (number, messages.text(number)):
            wrong.append(f"{event} ({message}: {n}, {text!r})")
            continue
        counts[number] += 1
        events[number] = event
    return counts, events, wrong


def _count_letters(letters: Iterable[Mapping[str, Any]], bad: set[int]) -> tuple[Counter[int], list[str]]:
    by_payload = {messages.payload(number): number for number in bad}
    counts: Counter[int] = Counter()
    strange = []
    for letter in letters:
        if (number := by_payload.get(letter["payload"])) is None:
            strange.append(f"{letter['event_id']} at {letter['stage']} ({letter['reason']})")
        else:
            counts[number] += 1
    return counts, strange


def _compare(place: str, counts: Counter[int], required: set[int], allowed: set[int]) -> Iterator[Finding]:
    kinds = {
        f"lost, not {place}": [number for number in required if not counts[number]],
        f"more than once {place}": [number for number, count in counts.items() if count > 1],
        f"never published, but {place}": [number for number in counts if number not in allowed],
    }
    for what, numbers in kinds.items():
        if numbers:
            yield Finding(what, tuple(messages.message_id(number) for number in sorted(numbers)))


def _disagreements(events: Mapping[str, Mapping[int, str]]) -> Iterator[Finding]:
    """One message is one event: in all tables under the same id, or in none."""
    (one, first), *others = events.items()
    for other, second in others:
        differ = sorted(n for n in first.keys() | second.keys() if first.get(n) != second.get(n))
        named = tuple(f"{messages.message_id(n)} ({first.get(n)}, {second.get(n)})" for n in differ)
        if named:
            yield Finding(f"not the same event in {one} and {other}", named)


def _account(evidence: Evidence, rows: int, letters: int) -> Iterator[Finding]:
    if evidence.audit_code or not evidence.audit["balanced"]:
        yield Finding(f"the audit does not balance (exit code {evidence.audit_code}): {evidence.audit}")
    (account,) = evidence.audit["sources"].values()
    empty = dict.fromkeys(("dropped", "refused", "expired", "in_flight"), 0)
    expected = {"received": evidence.log_head, "delivered": rows, "dead_lettered": letters, **empty}
    if account != expected:
        yield Finding(f"the account is {account}, what was found says {expected}")
