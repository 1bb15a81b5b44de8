"""What is handed on for a window is what its events add up to, once, however tasks and runs cut them up."""

from __future__ import annotations

import json
import pickle
import random
import re
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyroaring import BitMap64

from signoff.errors import TransientError
from signoff.link.handover import LinkPlace
from signoff.link.notes import Handed, LinkNotes
from signoff.log import LogReader
from signoff.pipeline.model import NAME_PATTERN
from signoff.sinks.contract import BatchRef, Part
from signoff.stateful.window_sinks import MARK_ID, LateCount, WindowIntake, WindowIntakeConfig
from signoff.transforms.window.bounds import Panes
from signoff.transforms.window.partial import Measure
from signoff.transforms.window.watermark_rule import WatermarkRule

SECOND = 1_000_000
MEASURES = (
    Measure("rows", "", "__p0"),
    Measure("sum", "__m1", "__p1"),
    Measure("avg", "__m2", "__p2", "__n2"),
    Measure("min", "__m3", "__p3"),
    Measure("count", "__m4", "__p4"),
)


@pytest.fixture
def place(tmp_path: Path) -> LinkPlace:
    return LinkPlace(tmp_path / "log", tmp_path / "notes")


def intake(place: LinkPlace, **settings: Any) -> WindowIntake:
    fields: dict[str, Any] = {
        "place": place, "sink": "w.state", "max_bytes": 1024**2, "when_full": "block",
        "awaited_by": frozenset(), "panes": Panes(60 * SECOND, 60 * SECOND), "keys": ("key",),
        "measures": MEASURES, "combines": True, "with_origins": False, "progress": WatermarkRule(0),
        "sources": frozenset({"a"}),
    }  # fmt: skip
    return WindowIntakeConfig(**{**fields, **settings}).build(Path())


Event = tuple[int, int, str | None, int | None]
"""Number, time in seconds, key, value."""


def rows(events: list[Event], closed: int | None) -> pa.RecordBatch:
    values = pa.array([event[3] for event in events], pa.int64())
    return pa.record_batch(
        {
            "event_id": [f"a/{event[0]}" for event in events],
            "__time": pa.array([event[1] * SECOND for event in events], pa.int64()),
            "__mark": pa.array([closed] * len(events), pa.int64()),
            "key": pa.array([event[2] for event in events], pa.string()),
            "__m1": values.cast(pa.decimal128(37, 0)),
            "__m2": values.cast(pa.float64()),
            "__m3": values,
            "__m4": values,
            "_origin": pa.array([event[0] for event in events], pa.int64()),
        }
    )


def hand_on(
    sink: WindowIntake, batch: BatchRef, tasks: list[list[list[Event]]], closed: int | None = None
) -> None:
    parts = []
    for number, batches in enumerate(tasks):
        writer = pickle.loads(pickle.dumps(sink)).open(Part(batch, number, attempt=number))
        for events in batches:
            assert not writer.write(rows(events, closed))
        if (part := writer.close()) is not None:
            parts.append(part)
    sink.commit(batch, parts)


def payloads(place: LinkPlace) -> list[dict[str, Any]]:
    log = LogReader(place.log)
    return [
        json.loads(text)
        for _, events in log.read(0, log.head())
        for text in events.column("payload").to_pylist()
    ]


def totals(place: LinkPlace) -> dict[tuple[int, str | None], tuple[int, int, float, int]]:
    found: dict[tuple[int, str | None], list[tuple[int, int, float, int]]] = {}
    for row in payloads(place):
        if "__start" in row:
            said = (row["__p0"], int(row.get("__p1") or 0), row.get("__p2") or 0.0, row["__p4"])
            found.setdefault((row["__start"] // SECOND, row.get("key")), []).append(said)
    return {key: tuple(map(sum, zip(*parts, strict=True))) for key, parts in found.items()}  # type: ignore[misc]


def made_up(number: int) -> list[Event]:
    chance = random.Random(number)
    return [
        (n, chance.randrange(600), chance.choice(["x", "y", None]), chance.choice([None, n, -n]))
        for n in range(number)
    ]


@pytest.mark.parametrize("combines", [True, False])
@pytest.mark.parametrize("every", [60, 20])
def test_partial_rows_add_up_to_all_events(place: LinkPlace, combines: bool, every: int) -> None:
    events = made_up(300)
    panes = Panes(60 * SECOND, every * SECOND)
    sink = intake(place, combines=combines, panes=panes)
    hand_on(sink, BatchRef("a", 0, 300), [[events[:90], events[90:150]], [events[150:]], []])
    expected: dict[tuple[int, str | None], list[int]] = {}
    for _, moment, key, value in events:
        for start in range(moment // every * every, moment - 60, -every):
            counts = expected.setdefault((start, key), [0, 0, 0])
            counts[0] += 1
            counts[1] += value or 0
            counts[2] += value is not None
    assert {k: (v[0], v[1], float(v[1]), v[2]) for k, v in expected.items()} == totals(place)
    sink.release()


def test_a_batch_that_comes_again_in_other_tasks_is_recognised(place: LinkPlace) -> None:
    events, batch = made_up(100), BatchRef("a", 0, 100)
    sink = intake(place)
    hand_on(sink, batch, [[events]])
    before = totals(place)
    sink.release()
    again = intake(place)
    hand_on(again, batch, [[events[:30]], [events[30:]]])
    assert totals(place) == before
    again.release()


def test_where_rows_may_differ_the_next_time_only_new_ones_are_handed_on(place: LinkPlace) -> None:
    events, batch = made_up(100), BatchRef("a", 0, 100)
    sink = intake(place, combines=False)
    hand_on(sink, batch, [[events[:60]]])
    hand_on(sink, batch, [[events[20:]]])
    whole = totals(place)
    assert sum(counts[0] for counts in whole.values()) == 100
    sink.release()


THREE: list[Event] = [(n, 10 + n, "x", 1) for n in range(3)]


@pytest.mark.parametrize(
    ("before", "now"), [(True, True), (True, False), (False, True)], ids=["combined", "no more", "now"]
)
def test_a_batch_that_comes_again_with_more_events_than_are_in_the_window_is_not_signed_for(
    place: LinkPlace, before: bool, now: bool
) -> None:
    batch, sink = BatchRef("a", 0, 3), intake(place, combines=before)
    hand_on(sink, batch, [[THREE[:2]]])
    sink.release()  # killed before the ledger knew it, and a condition in front is another one now
    again = intake(place, combines=now)
    with pytest.raises(TransientError, match="2 rows of 2 events, and comes again from 3 rows of 3 events"):
        hand_on(again, batch, [[THREE]])
    again.release()
    back = intake(place, combines=before)
    hand_on(back, batch, [[THREE[:1]], [THREE[1:2]]])
    assert totals(place)[0, "x"][0] == 2
    back.release()


@pytest.mark.parametrize("before", [True, False])
def test_events_count_once_if_a_batch_comes_again_and_is_combined_no_more_or_now(
    place: LinkPlace, before: bool
) -> None:
    batch, sink = BatchRef("a", 0, 3), intake(place, combines=before)
    hand_on(sink, batch, [[THREE]])
    sink.release()
    again = intake(place, combines=not before)
    hand_on(again, batch, [[THREE[:1]], [THREE[1:]]])
    assert totals(place)[0, "x"][0] == 3
    again.release()


def test_a_split_event_of_which_more_rows_come_again_is_not_signed_for(place: LinkPlace) -> None:
    batch, sink = BatchRef("a", 0, 1), intake(place)
    hand_on(sink, batch, [[[(0, 10, "x", 1)]]])
    with pytest.raises(TransientError, match="2 rows of 1 event"):
        hand_on(sink, batch, [[[(0, 10, "x", 1), (0, 11, "x", 1)]]])
    sink.release()


def test_a_batch_that_an_earlier_release_has_noted_is_recognised(place: LinkPlace) -> None:
    batch, sink = BatchRef("a", 0, 3), intake(place)
    hand_on(sink, batch, [[THREE]])
    sink.release()
    with closing(sqlite3.connect(place.database)) as old, old:
        old.execute("ALTER TABLE handed DROP COLUMN made_from")
        old.execute("PRAGMA user_version=2")
    again = intake(place)
    hand_on(again, batch, [[THREE]])
    assert totals(place)[0, "x"][0] == 3
    again.release()


def test_windows_that_are_closed_get_nothing(place: LinkPlace) -> None:
    sink = intake(place, panes=Panes(60 * SECOND, 20 * SECOND))
    hand_on(sink, BatchRef("a", 0, 1), [[[(0, 70, "x", 1)]]], closed=80 * SECOND)
    assert sorted(start for start, _ in totals(place)) == [40, 60]  # of 20, 40 and 60
    sink.release()


def test_all_events_of_a_row_are_known_where_they_wait_for_it(place: LinkPlace) -> None:
    events = made_up(50)
    sink = intake(place, with_origins=True, awaited_by=frozenset({"a"}))
    hand_on(sink, BatchRef("a", 0, 50), [[events[:20], events[20:35]], [events[35:]]])
    log, found = LogReader(place.log), Counter[int]()
    for _, part in log.read(0, log.head()):
        for first, headers in zip(
            part.column("position").to_pylist(), part.column("headers").to_pylist(), strict=True
        ):
            others = dict(headers or []).get("origins", "")
            found.update([first, *(int(number) for number in others.split(",") if number)])
    assert found == Counter(range(50))
    sink.release()


def test_the_mark_stands_behind_the_rows_it_was_found_from(place: LinkPlace) -> None:
    sink, batch = intake(place), BatchRef("a", 0, 3)
    sink.stamp(batch)
    hand_on(sink, batch, [[[(0, 10, "x", 1), (1, 130, "x", 1)]]])
    assert not any("__mark" in row for row in payloads(place)), "the batch is open"
    sink.close_batch(batch)
    assert payloads(place)[-1] == {"__mark": 130 * SECOND}
    sink.advance()
    assert len(payloads(place)) == 3
    sink.remind()
    assert payloads(place)[-1] == {"__mark": 130 * SECOND}
    sink.release()


def test_a_kill_after_the_rows_and_before_the_mark_loses_neither(place: LinkPlace) -> None:
    batch, events = BatchRef("a", 0, 3), [(0, 10, "x", 1), (1, 130, "x", 1)]
    sink = intake(place)
    sink.stamp(batch)
    hand_on(sink, batch, [[list(events)]])
    sink.release()  # and the batch was not closed
    again = intake(place)
    again.stamp(batch)
    hand_on(again, batch, [[list(events)]])
    again.close_batch(batch)
    assert [row.get("__mark") for row in payloads(place)] == [None, None, 130 * SECOND]
    again.release()


def test_no_row_of_any_source_has_the_id_of_a_mark() -> None:
    assert re.fullmatch(NAME_PATTERN, MARK_ID.split("/")[0]) is None


def test_a_mark_is_not_taken_for_a_batch_that_a_kill_kept_out_of_the_log(place: LinkPlace) -> None:
    batch, sink = BatchRef("a", 0, 1), intake(place)
    sink.marks.reach(60 * SECOND)
    sink.advance()
    sink.release()
    notes = LinkNotes(place.database)
    notes.note(Handed("w.state", batch, 1, 2, BitMap64([0])))  # and killed before its row was appended
    notes.close()
    again = intake(place)
    again.remind()
    hand_on(again, batch, [[[(0, 70, "x", 1)]]])
    assert [row["__start"] for row in payloads(place) if "__start" in row] == [60 * SECOND]
    again.release()


def test_late_events_are_counted_by_keys(place: LinkPlace) -> None:
    count = LateCount(place, ("key",))
    writer = pickle.loads(pickle.dumps(count)).open(Part(BatchRef("a", 0, 3), 0, 0))
    writer.write(pa.record_batch({"event_id": ["a/0", "a/1", "a/2"], "key": ["x", "y", "x"]}))
    sink = intake(place)
    for _ in range(2):
        count.commit(BatchRef("a", 0, 3), [writer.close() or b""])
    assert sink.marks.late() == {'{"key":"x"}': 2, '{"key":"y"}': 1}
    count.release()
    sink.release()


def test_an_event_that_cannot_be_written_is_refused_and_the_others_are_counted(place: LinkPlace) -> None:
    sink, events = intake(place), rows([(0, 10, "x", 1), (1, 11, "y", 1), (2, 12, "x", 1)], None)
    broken = pa.Array.from_buffers(
        pa.string(), 3, [None, pa.array([0, 1, 2, 3], pa.int32()).buffers()[1], pa.py_buffer(b"x\xffx")]
    )
    at = events.schema.get_field_index("key")
    writer = sink.open(Part(BatchRef("a", 0, 3), 0, 0))
    (refusal,) = writer.write(events.set_column(at, "key", broken))
    assert refusal.index == 1 and not refusal.transient
    sink.commit(BatchRef("a", 0, 3), [writer.close() or b""])
    assert totals(place)[(0, "x")][0] == 2
    sink.release()
