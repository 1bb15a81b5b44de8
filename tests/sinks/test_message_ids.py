"""Ids of rows that an earlier try has sent, and of what a run has published."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from signoff.sinks.contract import EVENT_ID, RunRef
from signoff.sinks.message_ids import MessageIds

RUN = RunRef(
    "daily@day=1#2",
    bounded=True,
    repeats={"rows": ((10, 0, 3), (14, 7, 1))},
    editions={"report.editions": "report"},
)


@pytest.mark.parametrize(
    ("here", "sent"),
    [
        ("rows/9", "rows/9"), ("rows/10", "rows/0"), ("rows/12", "rows/2"), ("rows/13", "rows/13"),
        ("rows/14", "rows/7"), ("rows/15", "rows/15"), ("rows/12/1/0", "rows/2/1/0"),
        ("others/10", "others/10"), ("rows/0d962da228dcaf20", "rows/0d962da228dcaf20"), (None, None),
        ("report.editions/3", "report/daily@day=1#2"), ("report.editions/3/1", "report/daily@day=1#2/1"),
    ],
)  # fmt: skip
def test_a_row_that_was_sent_before_keeps_the_id_it_had(here: str | None, sent: str | None) -> None:
    ids: MessageIds = pickle.loads(pickle.dumps(MessageIds(RUN)))
    rows = pa.record_batch({EVENT_ID: pa.array([here], pa.string()), "n": [1]})
    assert ids.applied(rows).to_pydict() == {EVENT_ID: [sent], "n": [1]}
    assert MessageIds().applied(rows) is rows
