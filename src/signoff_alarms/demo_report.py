"""What a demo has seen, as a report: HTML, and PDF where its library is installed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from signoff.reports import Format, MissingLibrary, Template, compose, render
from signoff_alarms.results import Results

_TEMPLATE = {
    "title": "Alarms of base stations: what the demo saw",
    "content": [
        {
            "heading": "In short",
            "text": "{sum(whereabouts.alarms)} of {sum(received.alarms)} alarms were to be counted: "
            "{sum(whereabouts.counted)} are in results, {sum(whereabouts.late)} came too late for their "
            "window, and {sum(whereabouts.without_time)} had no time that can be true.\n\n"
            "{count(alerts)} times a sensor failed five times within an hour, and an alert was raised.",
        },
        {
            "chart": "line",
            "of": "voltage",
            "title": "Voltage of the power grid beyond its threshold",
            "x": "hour",
            "x_title": "time",
            "y": "times",
            "y_title": "Alarms an hour",
            "by": "voltage",
        },
        {
            "chart": "bar",
            "of": "equipment",
            "title": "Equipment that failed most often",
            "x": "sensor",
            "x_title": "station / sensor",
            "y": "failures",
            "y_title": "Failures",
            "largest_first": True,
            "most": 10,
        },
        {
            "table": "whereabouts",
            "title": "Where every alarm is",
            "columns": [
                {"column": "analysis", "title": "To be counted"},
                {"column": "alarms", "title": "Alarms"},
                {"column": "counted", "title": "In results"},
                {"column": "late", "title": "Late"},
                {"column": "without_time", "title": "Without a time"},
            ],
        },
        {
            "table": "sinks",
            "title": "What each sink holds",
            "columns": [
                {"column": "sink", "title": "Sink"},
                {"column": "rows", "title": "Rows"},
                {"column": "signed", "title": "Signed for"},
            ],
        },
    ],
}


class Whereabouts(NamedTuple):
    """Where the alarms are that an analysis was to count."""

    analysis: str
    alarms: int
    counted: int
    late: int
    without_time: int


class Held(NamedTuple):
    """What a sink holds, and what it signed for."""

    sink: str
    rows: int
    signed: int


def write(
    place: Path, results: Results, received: int, whereabouts: Sequence[Whereabouts], held: Sequence[Held]
) -> list[Path]:
    """The files, `place` with the suffix of each form."""
    rows = {
        **results.charted(),
        "received": pa.table({"alarms": [received]}),
        "whereabouts": pa.Table.from_pylist([each._asdict() for each in whereabouts]),
        "sinks": pa.Table.from_pylist([each._asdict() for each in held]),
    }
    report = compose(Template.model_validate(_TEMPLATE), rows, datetime.now(UTC))
    forms: tuple[Format, ...] = ("html", "pdf")
    files = []
    for form in forms:
        try:
            content = render(report, form)
        except MissingLibrary:
            continue
        file = place.with_suffix(f".{form}")
        file.write_bytes(content)
        files.append(file)
    return files
