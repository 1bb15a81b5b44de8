"""Tables, counts and times as they are drawn on a terminal, readable at 80 columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from signoff.terminal import written_out

_GAP, _NAME, _STATE = 2, 6, 40
"""Columns of a terminal: between two columns of a table, and the least for a name and for a state."""


def named_table(
    first: str, heads: list[str], rows: Mapping[str, list[str]], width: int, states: Sequence[Text] = ()
) -> Table:
    """Names, numbers and states. A name or a state is cut off where there is no room, a number never."""
    wide = [max(map(len, cells)) for cells in zip(heads, *rows.values(), strict=True)]
    room = width - sum(wide) - _GAP * len(wide)
    names = min(max(map(len, [first, *rows])), max(room - (_STATE if states else 0), _NAME))
    table = Table(box=box.SIMPLE_HEAD, expand=False, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column(first, overflow="ellipsis", no_wrap=True, max_width=names)
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    if states:
        table.add_column("state", no_wrap=True)
    for index, (name, cells) in enumerate(rows.items()):
        for state in states[index : index + 1]:
            state.truncate(max(room - names - _GAP, _NAME), overflow="ellipsis")
        table.add_row(name, *cells, *states[index : index + 1])
    return table


def cut(text: str, style: str = "") -> Text:
    """One line, cut off where the terminal ends."""
    return Text(written_out(text), style=style, overflow="ellipsis", no_wrap=True)


def number(value: int) -> str:
    """A count, short enough for a column."""
    return f"{value:,}" if value < 10_000_000 else f"{value / 1e6:,.1f} M"


def events(value: int) -> str:
    return "1 event" if value == 1 else f"{number(value)} events"


def duration(seconds: float) -> str:
    """A time as people write it: `7 s`, `2:05 min`, `1:00:03`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d} min"
