"""Under which names sinks that publish whole batches publish rows beside a batch. Runs on the driver.

What is published takes the place of what was published under the same name. So rows that a sink is asked for
by name, and those of a sink that came into the pipeline when the batch was begun, have a name of their own: a
number that the ledger keeps until they are recorded (`BatchState.published_as`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from signoff.engine.delivery.open_sinks import SinkEntry
from signoff.ledger.batch_state import BatchState, SinkState, Wait
from signoff.ledger.ledger import Ledger

logger = logging.getLogger(__name__)


def settle_places(ledger: Ledger, source: str, sinks: Mapping[str, SinkEntry]) -> None:
    """At the start of a run: sinks of a source may have been renamed, or have the places of others."""
    places = {name: entry.place for name, entry in sinks.items() if entry.place}
    for old, new in ledger.settle_places(source, places).items():
        logger.info('sink "%s" is called "%s" now, at the same place: it goes on as that', old, new)


def numbers_of_sinks(
    sinks: Mapping[str, SinkEntry], known: BatchState, asked: Mapping[str, SinkState]
) -> dict[str, int]:
    """Under which numbers sinks publish what they are asked for; the others publish the batch itself."""
    return {
        name: known.published_as[name]
        for name, state in asked.items()
        if sinks[name].sink.atomic
        and (not state.wants_all or (sinks[name].sink.takes_back and name in known.published_as))
    }


def numbers_of_waits(
    sinks: Mapping[str, SinkEntry], known: BatchState, by_sink: Mapping[str, Wait]
) -> dict[str, int]:
    """Under which numbers sinks publish rows that have waited for a step."""
    return {name: known.published_as[wait] for name, wait in by_sink.items() if sinks[name].sink.atomic}
