"""The live picture of a run in the terminal: rates, what is in flight, outcomes, and each sink.

On a terminal it is a table that is drawn again twice a second; elsewhere a line every few seconds; with
`quiet` nothing.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from signoff.ledger.outcome import Account
from signoff.pipeline.graph import Graph

if TYPE_CHECKING:
    from signoff.engine.supervise import Run

_EVERY_S = 0.5
_LINE_EVERY_S = 5.0


class Progress:
    """Shows a run; give `tick` to `Run.execute`."""

    def __init__(self, graph: Graph, *, quiet: bool) -> None:
        self._graph = graph
        self._console = Console(stderr=True)
        self._quiet = quiet
        self._live: Live | None = None
        self._due = 0.0
        self._before: dict[str, tuple[float, Account]] = {}

    def __enter__(self) -> Progress:
        if not self._quiet and self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def tick(self, run: Run) -> None:
        """Draw, when it is time, and at the end."""
        now = time.monotonic()
        if self._quiet or (now < self._due and not run.ended):
            return
        self._due = now + (_EVERY_S if self._live else _LINE_EVERY_S)
        accounts = run.accounts()
        if self._live:
            self._live.update(Group(self._sources(run, accounts, now), self._sinks(run)), refresh=True)
        else:
            for name, account in accounts.items():
                self._console.print(_line(name, account), highlight=False, soft_wrap=True)
        self._before = {name: (now, account) for name, account in accounts.items()}

    def _sources(self, run: Run, accounts: dict[str, Account], now: float) -> Table:
        table = Table(title=f"{self._graph.name}", title_justify="left", expand=False)
        columns = (
            "received",
            "/s",
            "in flight",
            "delivered",
            "dropped",
            "dead-lettered",
            "refused",
            "expired",
        )
        table.add_column("source")
        for name in columns:
            table.add_column(name, justify="right")
        table.add_column("intake")
        for name, account in accounts.items():
            then, earlier = self._before.get(name, (now, account))
            rate = (account.received - earlier.received) / (now - then) if now > then else 0.0
            status = run.intake_status(name)
            state = (
                "starting"
                if status is None
                else status.state + (f": {status.reason}" if status.reason else "")
            )
            table.add_row(
                name, f"{account.received:,}", f"{rate:,.0f}", f"{account.in_flight:,}",
                f"{account.delivered:,}",
                f"{account.dropped:,}", f"{account.dead_lettered:,}", f"{account.refused:,}",
                f"{account.expired:,}", state,
            )  # fmt: skip
        return table

    def _sinks(self, run: Run) -> Table:
        assert run.ledger is not None
        totals = run.ledger.sink_totals()
        table = Table(expand=False)
        table.add_column("sink")
        table.add_column("rows", justify="right")
        table.add_column("state")
        for name in self._graph.sinks:
            found = totals.get(name)
            failing = found is not None and found.failing_since is not None
            state = Text("ok", style="green")
            if failing and found is not None and found.failing_since is not None:
                lasted = max(time.time() - found.failing_since, 0.0)
                state = Text(f"failing for {lasted:.0f} s: {found.error}", style="red")
            table.add_row(name, f"{found.rows:,}" if found else "0", state)
        return table


def _line(name: str, account: Account) -> str:
    counts = " ".join(f"{key}={value}" for key, value in account.as_dict().items())
    return f"{name}: {counts}"
