"""Values that no sink can write become null where a row has nobody to refuse it to."""

from __future__ import annotations

import pyarrow as pa

from signoff.sinks.refusal import fit, fitted


def test_only_the_value_that_cannot_be_written_is_null() -> None:
    text = pa.array([b"ok", b"\xff", None, b"x"], pa.binary()).view(pa.string())
    times = pa.array([0, 0, None, 2**62], pa.int64()).view(pa.timestamp("us", "UTC"))
    rows = fitted(pa.RecordBatch.from_pydict({"s": text, "t": times, "n": pa.array([1, 2, 3, 4])}))
    assert fit(rows).refusals == []
    assert rows.column("s").to_pylist() == ["ok", None, None, "x"]
    assert [value is None for value in rows.column("t").to_pylist()] == [False, False, True, True]
    assert rows.column("n").to_pylist() == [1, 2, 3, 4]
