"""What comes out of a plan that is run over a few events, without intake, batches and sinks."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from signoff.engine.plan.compile import RowName
from signoff.engine.plan.drop_counters import ended
from signoff.engine.plan.lineage import joined, made_from
from signoff.engine.plan.plan import Plan
from signoff.log import LogWriter
from signoff.pipeline.model import LogSettings
from signoff.sources.events import event_batch, piece
from signoff.transforms.frame import CHILD, OTHERS, SEQUENCE
from signoff.transforms.row_results import parse_result

KINDS = {"f": "error", "w": "waits", "d": "dropped"}


def log_of(events: Sequence[Mapping[str, Any]], directory: Path) -> Path:
    """A log with these events, as JSON."""
    writer = LogWriter(directory, LogSettings())
    texts = [json.dumps(event).encode() for event in events]
    writer.append(event_batch(piece(texts, list(range(len(texts))), {})))
    writer.sync()
    writer.close()
    return directory


class Ran:
    """What comes out of a plan."""

    def __init__(self, plan: Plan, letters: Collection[RowName] | None = None) -> None:
        """`letters`: the rows a replay asks for, by sequence and child; None: all."""
        self.sinks: dict[str, Counter[str]] = {name: Counter() for name in plan.sinks}
        self.came: dict[str, list[int]] = {name: [] for name in plan.sinks}
        """By sink: the sequences of its rows."""
        self.said: Counter[tuple[str, str, int, str]] = Counter()
        with plan.ready():
            rows = plan.df.toArrow().to_pylist()
        self.ended = ended(plan.df)
        for row in rows:
            child, origins = row.get(CHILD, ""), (row[SEQUENCE], *(row.get(OTHERS) or ()))
            for name, sink in plan.sinks.items():
                for delivery in sink.deliveries:
                    if row[delivery.alive] and is_asked_for(origins, joined(child, delivery.suffix), letters):
                        values = {
                            column: physical and row[physical]
                            for column, physical in delivery.columns
                            if not column.startswith("_")
                        }
                        self.came[name].append(origins[0])
                        self.sinks[name][shown(origins, joined(child, delivery.suffix), values)] += 1
            for error in plan.errors:
                if (text := row[error.column]) is not None:
                    kind = error.kind or "error"
                    if error.answers:
                        kind = KINDS[parse_result(text)[0]]
                    for origin in origins:
                        self.said[error.stage, str(kind), origin, joined(child, error.suffix)] += 1


def is_asked_for(origins: tuple[int, ...], child: str, letters: Collection[RowName] | None) -> bool:
    return letters is None or any(n in origins and made_from(child, parent) for n, parent in letters)


def shown(origins: tuple[int, ...], child: str, values: Any) -> str:
    return f"{origins} {child!r} {sorted((name, repr(value)) for name, value in values.items())}"
