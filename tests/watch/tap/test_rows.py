"""A row as a tap shows it: JSON, without secrets."""

from __future__ import annotations

import json

from signoff.pipeline.secrets import register_secret
from signoff.watch.tap.rows import TappedRow, ids, shown


def test_values_are_json_and_hold_no_secret() -> None:
    register_secret("open-sesame")
    value = {"text": "it is open-sesame", "bytes": b"\xff\x00", "inner": [{"open-sesame": ("a", 1, None)}]}
    assert shown(value) == {"text": "it is ***", "bytes": "/wA=", "inner": [{"***": ["a", 1, None]}]}
    json.dumps(shown(value))


def test_a_row_is_named_by_its_event_and_what_it_was_made_from() -> None:
    assert ids("incoming", 7, "", None) == ("incoming/7", ())
    assert ids("incoming", 7, "2/high", []) == ("incoming/7/2/high", ())
    assert ids("incoming", 7, "", [9]) == ("incoming/7", ("incoming/7", "incoming/9"))


def test_only_what_is_known_is_shown() -> None:
    failed = TappedRow("incoming/7", "failed", "it does not parse", event="dead_lettered")
    assert failed.as_dict() == {
        "event_id": "incoming/7", "at": "failed", "reason": "it does not parse", "event": "dead_lettered"
    }  # fmt: skip
    assert TappedRow("incoming/7", "passed").as_dict() == {
        "event_id": "incoming/7",
        "at": "passed",
        "row": {},
    }
