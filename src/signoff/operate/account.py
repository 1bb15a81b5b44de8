"""The account of a pipeline, and whether it adds up: what `signoff audit` says."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from signoff.engine.state_dir.identity import StateIdentity
from signoff.engine.state_dir.removed_nodes import RemovedNodes, what_is_gone
from signoff.ledger import DeadLetters, Ledger
from signoff.ledger.audit import Audit, audit
from signoff.log import LogReader
from signoff.pipeline.graph import Graph


@dataclass(frozen=True)
class AccountReport:
    """Where every event is that was received, and what contradicts it."""

    audit: Audit
    gone: RemovedNodes
    """What waits for nodes that are not in the pipeline any more."""

    def to_json(self) -> dict[str, Any]:
        missing = {"gone": self.gone.as_dict()} if self.gone.as_dict() else {}
        unread = {"unreadable_link": self.gone.unread} if self.gone.unread else {}
        return self.audit.as_dict() | missing | unread


def read_account(graph: Graph) -> AccountReport:
    """Audit log, ledger and dead letters. Reads all that is not settled: takes as long as that is big."""
    report = audit(graph, LogReader)
    with (
        Ledger(graph.state / "ledger.db", readonly=True) as ledger,
        DeadLetters(graph.state / "dead_letters.db", readonly=True) as letters,
    ):
        mixed = StateIdentity(graph.state, ledger, LogReader).misfits(graph.sources.keys())
        gone = what_is_gone(graph, ledger, letters)
    return AccountReport(replace(report, findings=(*report.findings, *mixed)), gone)
