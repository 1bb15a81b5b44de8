"""Sinks that were not there when the last batch was taken, and what they get.

A new sink gets every event that is not settled, and all that come later. An event that is settled was
settled without it: its source was told, and nobody would hear if the new sink refused it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from signoff.ledger.ledger import Ledger
from signoff.log import LogReader


def newcomers(ledger: Ledger, logs: Mapping[str, LogReader], sinks: Mapping[str, Iterable[str]]) -> list[str]:
    """What is to be said of the sinks that are new; `logs` and the names of the `sinks` by source."""
    said: list[str] = []
    for source, names in sinks.items():
        known = ledger.sinks_of_last_batch(source)
        if known is None:
            continue  # nothing was settled without anybody
        new = sorted(set(names) - known)
        said += [_sentence(name, source, ledger, logs[source]) for name in new]
    return said


def _sentence(name: str, source: str, ledger: Ledger, log: LogReader) -> str:
    books = ledger.books(source)
    settled, first = books.settled, log.first()  # what is trimmed is settled
    kept = max(settled - first, 0)
    text = (
        f'"{name}" is new: of {source} it gets the events that are not settled yet, and later ones; '
        f"{settled:,} of the first {books.next:,} were settled without it"
    )
    if kept:
        text += (
            f", and {kept:,} of them are still in the log, where a program can read them "
            f'(see "A new sink" in docs/pipeline.md): {log.directory}'
        )
    return text
