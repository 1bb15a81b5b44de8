"""Short ways to say what happened to a batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pyroaring import BitMap64

from signoff.ledger import Ledger, Outcome, RowOutcome, RowRef
from signoff.ledger.batch_state import BatchState, SinkState


def attempt(
    ledger: Ledger,
    start: int,
    end: int,
    *,
    source: str = "incoming",
    delivered: Iterable[int] = (),
    owed: Iterable[int] = (),
    sinks: Mapping[str, SinkState] | None = None,
    rows: Mapping[str, int] | None = None,
    **outcomes: Iterable[int],
) -> BatchState:
    """Open the batch if need be and record: `refused=[3]` is a row of event 3 refused by `table`."""
    ledger.open_batch(source, start, end, ["table"])
    return ledger.record(
        source,
        start,
        end,
        delivered=BitMap64(delivered),
        outcomes=[
            RowOutcome(RowRef(number), "table", Outcome(outcome), f"{outcome} for a reason")
            for outcome, numbers in outcomes.items()
            for number in numbers
        ],
        sinks=sinks or {},
        owed=BitMap64(owed),
        rows=rows,
    )
