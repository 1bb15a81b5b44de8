"""What a run shows of itself while it goes on.

On a terminal: what is happening now, a bar with the time left where the end is known, and tables of the
sources and sinks, drawn again twice a second and readable at 80 columns. Elsewhere, as in a log: a line when
something has changed, with time and level, and at most one in five seconds for the counters. With `logged`
these are records of the run's log, without the counters, but with the account at the end, in fields as well.
With `quiet` nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from signoff.ledger.outcome import Account
from signoff.logs import text_line
from signoff.run.progress_snapshot import Moment, Rates, SinkMoment, read_moment
from signoff.terminal import written_out
from signoff.watch.drawing import cut, duration, named_table, number

if TYPE_CHECKING:
    from signoff.run.supervisor import Run

logger = logging.getLogger(__name__)

_EVERY_S = 0.5
_LINE_EVERY_S = 5.0
_ALWAYS = ("delivered",)
_IF_ANY = ("dropped", "dead_lettered", "refused", "expired")
"""Outcomes that have a column once there is one."""
_BAR = 30


class Progress:
    """Shows a run; give `tick` to `Run.execute`."""

    def __init__(self, *, quiet: bool, logged: bool = False, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._quiet, self._logged = quiet, logged
        self._live: Live | None = None
        self._due = 0.0
        self._rates = Rates()
        self._lines = Lines(counters=not logged)
        self._last: Moment | None = None

    def __enter__(self) -> Progress:
        if not self._quiet and not self._logged and self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()
            for line in account_lines(self._last) if self._last else ():  # below the picture
                self._print(line.text)

    def tick(self, run: Run) -> None:
        """Show the run, when it is time, and at its end."""
        if self._quiet or (time.monotonic() < self._due and not run.ended):
            return
        self._due = time.monotonic() + _EVERY_S
        self.show(read_moment(run))

    def show(self, moment: Moment) -> None:
        """Show one moment; the last one is followed by the account."""
        self._rates.add(moment)
        self._last = moment
        if self._live:
            self._live.update(picture(moment, self._rates, self._console.width), refresh=True)
            return
        for line in self._lines.of(moment):
            if self._logged:
                logger.log(line.level, "%s", line.text, extra={"fields": line.fields})
            else:  # not as a record: a program with a logging of its own may not let it through
                self._print(text_line(time.time(), line.level, line.text))

    def _print(self, line: str) -> None:
        line = written_out(line) if self._console.is_terminal else line
        self._console.print(line, highlight=False, soft_wrap=True, markup=False)


def sentence(moment: Moment) -> str:
    """What is happening now."""
    since = duration(moment.since_s)
    if moment.phase == "starting":
        return f"starting Spark, {since}"
    if moment.phase == "stopping":
        what = f"finishing {_events(moment.in_flight)}" if moment.in_flight else "ending Spark"
        most = "" if moment.left_s is None else f", for at most {duration(moment.left_s)} more"
        return f"stopping: {what}{most}"
    if moment.phase == "telling":
        return "stopping: telling the sources what became of their events"
    if moment.phase == "ended":
        return "ended"
    if moment.taken:
        return f"running: {_events(moment.taken)} in batches under way"
    return (
        "running: waiting for events"
        if not moment.in_flight
        else f"running: {_events(moment.in_flight)} wait"
    )


def picture(moment: Moment, rates: Rates, width: int = 80) -> RenderableType:
    """The whole picture for a terminal."""
    parts: list[RenderableType] = [cut(f"{moment.name}: {sentence(moment)}", "bold")]
    if (bar := _bar(moment, rates, width)) is not None:
        parts.append(bar)
    parts.append(_sources(moment, rates, width))
    for name, source in moment.sources.items():
        if source.intake != "receiving" and moment.phase != "ended":
            parts.append(cut(f"intake of {name}: {source.intake}"))
    return Group(*parts, _sinks(moment, width))


def _bar(moment: Moment, rates: Rates, width: int) -> RenderableType | None:
    """How far it has come, where the end is known, or about known. A number is never cut off, the bar is."""
    total = moment.expected
    if not total or moment.phase == "starting":
        return None
    left = ""
    if moment.settled < total and rates.settled > 0:
        left = f"{duration((total - moment.settled) / rates.settled)} left"
    about = "about " if moment.estimated else ""
    cells = [
        f"{100 * moment.settled // total} %",
        f"{number(moment.settled)} of {about}{number(total)}",
        f"{rates.settled:,.0f}/s",
        left,
    ]
    room = width - sum(len(cell) + 1 for cell in cells) - 1
    grid = Table.grid(padding=(0, 1))
    completed = min(moment.settled, total)
    grid.add_row(ProgressBar(total=total, completed=completed, width=max(1, min(_BAR, room))), *cells)
    return grid


def _sources(moment: Moment, rates: Rates, width: int) -> Table:
    accounts = [source.account for source in moment.sources.values()]
    outcomes = [*_ALWAYS, *(name for name in _IF_ANY if any(getattr(a, name) for a in accounts))]
    heads = ["received", "/s", "in flight", *(name.replace("_", "-") for name in outcomes)]
    rows = {
        name: [
            number(source.account.received),
            number(round(rates.received(name))),
            number(source.account.in_flight),
            *(number(getattr(source.account, outcome)) for outcome in outcomes),
        ]
        for name, source in moment.sources.items()
    }
    return named_table("source", heads, rows, width)


def _sinks(moment: Moment, width: int) -> Table:
    rows = {name: [number(sink.rows)] for name, sink in moment.sinks.items()}
    states = [_state(sink) for sink in moment.sinks.values()]
    return named_table("sink", ["rows"], rows, width, states)


def _state(sink: SinkMoment) -> Text:
    if sink.failing_since is None:
        return Text("ok", style="green")
    lasted = duration(max(time.time() - sink.failing_since, 0.0))
    return Text(f"failing for {lasted}: {written_out(sink.trouble)}", style="red")


@dataclass(frozen=True)
class Line:
    """A line of a log: what it says, and the numbers in it by name."""

    text: str
    level: int = logging.INFO
    fields: Mapping[str, str | int] = field(default_factory=dict)


class Lines:
    """The run as lines of a log: what has changed since the last one."""

    def __init__(self, *, counters: bool = True) -> None:
        self._counts_too = counters
        self._phase = ""
        self._accounts: dict[str, Account] = {}
        self._failing: dict[str, bool] = {}
        self._counted_at = float("-inf")

    def of(self, moment: Moment) -> list[Line]:
        """The lines that are due; none when nothing has changed."""
        lines = []
        if moment.phase not in ("ended", self._phase):
            self._phase = moment.phase
            lines.append(Line(f"{moment.name}: {_announced(moment)}"))
        for name, sink in moment.sinks.items():
            failing = sink.failing_since is not None
            if failing != self._failing.get(name, False):
                said = f"fails: {sink.trouble}" if failing else "works again"
                lines.append(Line(f'sink "{name}" {said}', logging.WARNING if failing else logging.INFO))
                self._failing[name] = failing
        return lines + self._counters(moment)

    def _counters(self, moment: Moment) -> list[Line]:
        if moment.phase == "ended":
            return account_lines(moment)
        if not self._counts_too:
            return []
        accounts = {name: source.account for name, source in moment.sources.items()}
        if accounts == self._accounts or moment.at < self._counted_at + _LINE_EVERY_S:
            return []
        changed = [
            name for name, account in accounts.items() if account != self._accounts.get(name, Account())
        ]
        self._accounts = accounts
        if changed:
            self._counted_at = moment.at
        return [_counted(name, name, accounts[name]) for name in changed]


def account_lines(moment: Moment) -> list[Line]:
    """Where every event is; said at the end."""
    if moment.phase != "ended":
        return []
    return [_counted(f"account of {name}", name, source.account) for name, source in moment.sources.items()]


def _announced(moment: Moment) -> str:
    """A phase, said once at its beginning."""
    if moment.phase == "starting":
        return "starting Spark"
    return "running" if moment.phase == "running" else sentence(moment)


def _counted(head: str, source: str, account: Account) -> Line:
    numbers = account.as_dict()
    counts = " ".join(f"{key}={value}" for key, value in numbers.items())
    return Line(f"{head}: {counts}", fields={"source": source, **numbers})


def _events(number: int) -> str:
    return f"{number:,} event{'' if number == 1 else 's'}"
