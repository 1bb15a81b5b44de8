"""Which refusals may be asked again: those of a sink that gave up, not those of one that said never."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from signoff.engine.result import Kind, Result, pack_rows
from signoff.engine.verdict import Round, judge
from signoff.ledger.outcome import RowRef, SinkState
from signoff.pipeline.model import Retry, SinkConfig


def test_a_sink_that_gave_up_refuses_for_now_and_one_that_says_never_for_good() -> None:
    config = SinkConfig(type="toy", on_failure="refuse", retry=Retry(attempts=2))
    owed = pack_rows([(np.array([1], dtype=np.int64), pa.array([""]))])
    results = [
        Result("out", Kind.REFUSED, 0, "", "too long"),
        Result("out", Kind.OWED, text="down", number=2, blob=owed),
        Result("parse", Kind.ERROR, 2, "", "not JSON"),
    ]
    asked = {"out": (config, SinkState(done=False))}
    verdict = judge(results, asked, {"parse": "refuse"}, lambda *_: None, set(), 0.0)
    transient = {outcome.row: outcome.transient for outcome in verdict.outcomes}
    assert transient == {RowRef(0): False, RowRef(1): True, RowRef(2): False}


def test_an_event_that_is_settled_at_once_leaves_nothing_handed_on() -> None:
    verdict = Round(owed=BitMap64([1]))
    verdict.sinks["out"] = SinkState(done=False, attempts=1, owed=(), handed=BitMap64([1]))
    verdict.settle(BitMap64([1]))
    assert verdict.sinks["out"].done and not verdict.sinks["out"].handed
