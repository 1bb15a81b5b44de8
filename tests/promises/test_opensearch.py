"""The pipeline of docs/sinks.md, with a real OpenSearch that is killed in the middle, and blocks an index."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.promises.product import SOON, Inline, books
from tests.search_server import OpenSearch

pytestmark = pytest.mark.spark

PAGE = (Path(__file__).parents[2] / "docs" / "sinks.md").read_text(encoding="utf-8")
BLOCKED, OTHER = "alarms-2021.05.02", "alarms-2021.05.01"
TOO_LARGE = 40_000
"""For a field that is a `short`."""


def alarms(start: int, end: int) -> list[dict[str, object]]:
    """Every tenth is of the second day."""
    return [
        {"stationId": n, "alarmId": 303, "eventTime": f"2021-05-0{2 if n % 10 == 0 else 1}T10:00:00Z"}
        for n in range(start, end)
    ]


@pytest.mark.case(65, 66)
def test_each_row_of_a_bulk_request_has_its_own_outcome_and_a_server_that_is_killed_has_each_event_once(
    inline: Callable[..., Inline], opensearch: OpenSearch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEARCH_URL", opensearch.url)
    opensearch.ask("DELETE", "/alarms-*")
    opensearch.ask("PUT", f"/{BLOCKED}", {"settings": {"index.blocks.read_only_allow_delete": True}})
    blocks = re.findall(r"^```yaml pipeline\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    pipeline = yaml.safe_load(next(block for block in blocks if "opensearch" in block))
    pipeline["sources"]["incoming"]["max_events_per_batch"] = 200
    pipeline["sinks"]["search"]["retry"] = SOON
    product = inline()
    product.write(pipeline)

    product.put("first.jsonl", [*alarms(0, 10), {**alarms(11, 12)[0], "alarmId": TOO_LARGE}])
    running = product.start()
    running.wait_for(lambda: len(opensearch.documents(OTHER)) == 9 and product.dead_letters())
    (letter,) = product.dead_letters()
    assert "out of range" in letter["reason"] and letter["event_id"] == "incoming/10"
    assert product.account() == books(delivered=9, dead_lettered=1, in_flight=1), "one waits for its index"

    opensearch.settings(BLOCKED, **{"index.blocks.read_only_allow_delete": None})
    running.wait_for(lambda: product.settled_upto() == 11)

    product.put("second.jsonl", alarms(20, 4020))
    running.wait_for(lambda: len(opensearch.hits(OTHER)) > 500)
    opensearch.kill()
    running.wait_for(lambda: product.status()["sinks"]["search"]["failing_since"])
    opensearch.start()
    running.wait_for(lambda: product.settled_upto() == 11 + 4000)
    assert product.account() == books(delivered=10 + 4000, dead_lettered=1)
    found = opensearch.documents("alarms-*")
    assert len(found) == 4010 and {one["event_id"] for one in found.values()} == found.keys()
    assert opensearch.ask("GET", f"/{OTHER}/_mapping")[OTHER]["mappings"]["properties"]["alarmId"] == {
        "type": "short"
    }
