"""The buffers of a pipeline, and giving up what nobody takes: what `signoff buffers` does."""

from __future__ import annotations

from collections.abc import Callable

from signoff.engine.state_dir.buffers import Buffer, give_up, give_up_state, read_buffers, state_is_lost
from signoff.engine.state_dir.removed_nodes import give_up_handed, take_back_letters, what_is_gone
from signoff.errors import RequestError, StateError
from signoff.ledger import DeadLetters, Ledger, RunLock
from signoff.pipeline.graph import Graph

Confirm = Callable[[str], None]
"""Is asked before anything is given up, and raises if it shall not be."""


def list_buffers(graph: Graph) -> dict[str, Buffer]:
    """By name: whose they are, how many rows wait, how full they are."""
    with Ledger(graph.state / "ledger.db", readonly=True) as ledger:
        return read_buffers(graph, ledger)


def drop_buffer(graph: Graph, name: str, confirm: Confirm = lambda _: None) -> list[str]:
    """Give up a buffer whose sink is no longer in the pipeline, the lost state of a window or fold, or what
    waits behind a link that is gone. Says what was done. Only while no run is alive."""
    with RunLock(graph.state), Ledger(graph.state / "ledger.db") as ledger:
        found = read_buffers(graph, ledger)
        if name not in found:
            if (said := _give_up_link(graph, ledger, name, confirm)) is not None:
                return said
            raise RequestError(f'there is no buffer "{name}" (have: {", ".join(found) or "none"})', "buffer")
        if state_is_lost(graph, name):
            confirm(f'Give up what the lost state of "{name}" held?')
            return [f"{give_up_state(graph, ledger, name)} rows dropped; the step starts with an empty state"]
        if found[name].sink is not None:
            raise StateError(f'sink "{found[name].sink}" takes rows from this buffer; remove the sink first')
        confirm(f"Drop {found[name].waiting} rows?")
        return [f"{give_up(graph, ledger, name)} rows dropped"]


def _give_up_link(graph: Graph, ledger: Ledger, name: str, confirm: Confirm) -> list[str] | None:
    """What was done; None if nothing is waited for behind a link of this name."""
    with DeadLetters(graph.state / "dead_letters.db") as letters:
        gone = what_is_gone(graph, ledger, letters)
        if gone.unread:
            raise StateError(f"{gone.unread}; nothing is discarded")
        if name not in gone.handed:
            return None
        confirm(f"Stop waiting for the outcome of {gone.handed[name]} events?")
        number = give_up_handed(graph, ledger, name)
        said = [f"{number} events wait no more for the other pipeline; here they count as dropped"]
        if again := take_back_letters(graph, ledger, letters, name):
            said.append(f"{again} dead letters wait no more for it either, and are stored again")
        return said
