"""What is printed, and how much of it."""

from __future__ import annotations

import pytest

from signoff.sinks.console import ConsoleSink
from signoff.testing.conformance.rows import batch_ref, numbered, write_part


def test_no_more_rows_are_printed_than_asked_for_and_the_rest_is_counted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sink = ConsoleSink(max_rows=3)
    parts = [write_part(sink, numbered(2_000, start=2_000 * n), batch_ref(), n)[1] for n in (1, 0)]
    assert all(part is not None and len(part) < 300 for part in parts)
    sink.commit(batch_ref(), [part for part in parts if part is not None])
    *rows, rest = capsys.readouterr().out.splitlines()
    assert [row[:24] for row in rows] == [f'{{"event_id":"incoming/{number}"'[:24] for number in range(3)]
    assert rest == "… 3997 more rows in incoming-000000000000-000000000010"


def test_batch_without_rows_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    ConsoleSink().commit(batch_ref(), [])
    assert capsys.readouterr().out == ""
