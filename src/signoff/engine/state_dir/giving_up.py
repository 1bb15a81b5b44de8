"""Giving up what a source has in flight: when its log is lost, or the source is in the pipeline no more.

Given up is refused, and said so: each event counts as refused, with the reason, and the source is told where
it can be (it gets a negative answer, as for something that may be taken another time). Numbers are never used
twice: the new log begins behind every number that anybody may have seen.

Only while no run is alive. The ledger is written first, then the log: a kill in between leaves a log of which
everything is settled, or none, and the command can be called again: it finds the place of the source then.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pyroaring import BitMap64

from signoff.engine.feedback.replays import give_back
from signoff.engine.split.boundaries import buffer_place
from signoff.engine.split.division import all_boundaries
from signoff.engine.state_dir.identity import StateIdentity
from signoff.errors import LogError, StateError
from signoff.intake import read_status
from signoff.ledger.batch_state import Done
from signoff.ledger.batches import HandedOnOutcome
from signoff.ledger.dead_letters import DeadLetters
from signoff.ledger.ledger import Ledger
from signoff.ledger.outcome import (
    BUFFER,
    Account,
    EventId,
    Outcome,
    RowOutcome,
    RowRef,
)
from signoff.link.notes import LinkNotes
from signoff.log import LogReader
from signoff.log.new_log import FRESH, begin_anew, last_whole
from signoff.pipeline.graph import Graph
from signoff.pipeline.model import SourceConfig
from signoff.private import make_private

GIVEN_UP = "given-up"
"""Directory of the state directory: logs that were put aside."""
_AT_ONCE = 20_000
"""Events of one transaction: the ledger keeps a row of each."""


@dataclass(frozen=True, slots=True)
class GivenUp:
    """What a reset has done."""

    events: int
    """Events that were in flight, and count as refused now."""
    next_sequence: int
    """Number of the next event."""
    aside: Path | None
    """Where the old log is, if there was one."""


def stranded(graph: Graph, ledger: Ledger) -> dict[str, Account]:
    """Sources that are in the pipeline no more, and whose events are not all settled: nobody will do it."""
    logs = graph.state / "log"
    on_disk = [path.name for path in logs.iterdir() if path.is_dir()] if logs.is_dir() else []
    found = {}
    for name in sorted({*ledger.sources(), *on_disk} - graph.sources.keys()):
        if name.endswith(BUFFER):
            continue
        account = ledger.books(name).account(max(_end(logs / name), ledger.books(name).next))
        if account.in_flight:
            found[name] = account
    return found


def sources_gone(graph: Graph) -> frozenset[str]:
    """The names of these sources."""
    with Ledger(graph.state / "ledger.db", readonly=True) as ledger:
        return frozenset(stranded(graph, ledger))


def drop(graph: Graph, ledger: Ledger, name: str) -> int:
    """Give up what a source has in flight that is in the pipeline no more. Its log stays; it owes nothing."""
    return give_up(ledger, name, _used(graph, ledger, name), "given up: signoff sources drop")


def reset(graph: Graph, ledger: Ledger, name: str) -> GivenUp:
    """Give up what is in flight, and begin a log behind it: of a source, or of a buffer."""
    directory, end = graph.state / "log" / name, _used(graph, ledger, name)
    left = list(_left_by_kills(graph.state, name))
    begun = [] if directory.exists() else [log for log in left if last_whole(log).first_sequence == end]
    header = last_whole(begun[0] if begun else directory)._replace(first_sequence=end)
    if name in graph.sources:
        config = graph.nodes[name].config
        assert isinstance(config, SourceConfig)
        header = header._replace(before=config.place_after(header.before))
    given_up = give_up(ledger, name, end, "given up: signoff sources reset")
    if name.endswith(BUFFER):
        _release_fronts(graph, ledger, name)
    aside = _aside(graph.state, name) if directory.exists() else None
    begin_anew(directory, header, aside or _aside(graph.state, name))
    belonging = StateIdentity(graph.state, ledger, LogReader)
    for kind in ("log", "links") if name.endswith(BUFFER) else ("log", "intake"):
        make_private(graph.state / kind / name)
        belonging.stamp(f"{kind}/{name}")
    for log in left:
        shutil.rmtree(log, ignore_errors=True)
    return GivenUp(given_up, end, aside)


def _used(graph: Graph, ledger: Ledger, name: str) -> int:
    """Every number that anybody can have seen is below."""
    directory = graph.state / "log" / name
    status = read_status(graph.state / "intake" / name)
    with DeadLetters(graph.state / "dead_letters.db", readonly=True) as letters:
        named = [EventId.parse(letter).sequence + 1 for letter, _ in letters.keys(source=name)]
    return max(
        ledger.books(name).next,
        ledger.named_upto(name),
        _end(directory),
        last_whole(directory).first_sequence,
        status.next_sequence if status else 0,
        *named,
    )


def _end(directory: Path) -> int:
    """Where a log says that it ends, damaged or not."""
    with suppress(LogError, OSError):
        return LogReader(directory).head()
    return last_whole(directory).first_sequence


def give_up(ledger: Ledger, source: str, end: int, reason: str) -> int:
    """Settle everything below `end` that is not; returns how many events that were."""
    number = 0
    for known in ledger.open_batches(source):
        number += _refuse(ledger, source, known.ref.start, known.ref.end, reason)
    for start, stop in _pieces(ledger.books(source).next, end):
        number += _refuse(ledger, source, start, stop, reason)
    return number


def _refuse(ledger: Ledger, source: str, start: int, end: int, reason: str) -> int:
    known = ledger.open_batch(source, start, end, [])
    owed = known.owed
    ledger.record(
        source,
        start,
        end,
        delivered=BitMap64(),
        outcomes=_refusals(owed, source, reason),
        sinks={sink: Done() for sink, state in known.sinks.items() if state.to_ask},
        waits={wait: Done() for wait, state in known.waits.items() if state.to_ask},
        owed=BitMap64(),
        at_once=True,
    )
    return len(owed)


def _refusals(origins: BitMap64, stage: str, reason: str) -> list[RowOutcome]:
    return [RowOutcome(RowRef(n), stage, Outcome.REFUSED, reason, transient=True) for n in origins]


def _release_fronts(graph: Graph, ledger: Ledger, name: str) -> None:
    """Events whose rows were in a buffer wait for nothing there any more: they are refused. For
    letters whose replayed rows were in it there are letters of the sink."""
    buffer = name.removesuffix(BUFFER)
    reason = f'given up: the buffer "{buffer}" was reset'
    sinks = {boundary.sink for _, boundary in all_boundaries(graph) if boundary.source == name} | {buffer}
    for source in ledger.sources():
        for known in ledger.open_batches(source):
            for sink in sinks & known.sinks.keys():
                if rows := known.sinks[sink].handed_on:
                    refusals = _refusals(rows & known.owed, sink, reason)
                    answer = HandedOnOutcome(rows, BitMap64(), BitMap64(), refusals, at_once=True)
                    ledger.release(source, known.ref.start, known.ref.end, sink, answer)
    with DeadLetters(graph.state / "dead_letters.db") as letters:
        for letter in letters.list(statuses=("handed",), brief=True):
            for sink in sinks & set(letter.handed):
                give_back(ledger, letters, letter, sink, reason)
    place = buffer_place(graph, name)
    if place.database.exists():
        notes = LinkNotes(place.database)
        try:
            for noted in notes.each():
                notes.forget(noted)
        finally:
            notes.close()


def _pieces(start: int, end: int) -> Iterator[tuple[int, int]]:
    while start < end:
        yield start, min(start + _AT_ONCE, end)
        start = min(start + _AT_ONCE, end)


def _aside(state: Path, name: str) -> Path:
    number = 1
    while (state / GIVEN_UP / f"{name}-{number}").exists():
        number += 1
    return state / GIVEN_UP / f"{name}-{number}"


def _left_by_kills(state: Path, name: str) -> Iterator[Path]:
    """New logs of resets that were killed. When the old one was out of its place already, nothing else tells
    where the source goes on; if it begins where the next one will, nothing was received since."""
    mine = re.compile(re.escape(name) + r"-\d+" + re.escape(FRESH))
    if (state / GIVEN_UP).is_dir():
        yield from (path for path in (state / GIVEN_UP).iterdir() if mine.fullmatch(path.name))


def check_name(graph: Graph, ledger: Ledger, name: str) -> None:
    """Raises StateError for a name that is of no source and of no buffer."""
    logs = graph.state / "log"
    on_disk = [path.name for path in logs.iterdir() if path.is_dir()] if logs.is_dir() else []
    known = sorted({*graph.sources, *ledger.sources(), *on_disk})
    if name not in known:
        raise StateError(f'there is no source "{name}" (have: {", ".join(known) or "none"})')
