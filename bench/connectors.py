"""Connectors against their bare clients, side by side in one run.

    opensearch    documents into an index: a bare loop of `_bulk` requests over rows that are dicts already,
                  against the sink's writer over Arrow, with requests of the same size, in turns

The server is the tests' own (scripts/set-up-opensearch), on the same machine: it takes most of the time.

    .venv/bin/python bench/connectors.py [--rows 100000] [--turns 5]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import orjson
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.search_server import OpenSearch, private_opensearch

from signoff.sinks.contract import EVENT_ID, BatchRef, Part
from signoff.sinks.opensearch.actions import INDEX
from signoff.sinks.opensearch.sink import OpensearchSinkConfig

REQUEST_BYTES = 1_000_000
MAPPINGS = {
    "properties": {
        EVENT_ID: {"type": "keyword"},
        "stationId": {"type": "long"},
        "alarmId": {"type": "short"},
        "eventTime": {"type": "date"},
        "value": {"type": "double"},
    }
}


def dicts(count: int) -> list[dict[str, Any]]:
    return [
        {
            EVENT_ID: f"incoming/{number}",
            "stationId": number % 2000,
            "alarmId": 301 + number % 10,
            "eventTime": f"2021-05-01T10:{number // 60 % 60:02d}:{number % 60:02d}Z",
            "value": number % 400 + number % 1000 / 1000,
        }
        for number in range(count)
    ]


def arrow(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    made = pa.RecordBatch.from_pylist(rows)
    place = made.schema.get_field_index("eventTime")
    times = made.column(place).cast(pa.timestamp("us", "UTC"))
    return made.set_column(place, "eventTime", times)


def bare(search: OpenSearch, rows: list[dict[str, Any]]) -> None:
    """JSON by orjson, a request whenever there are enough bytes, a short answer: only `errors` is read."""
    with httpx.Client(base_url=search.url, timeout=60, trust_env=False) as client:

        def send(lines: list[bytes]) -> None:
            headers = {"Content-Type": "application/x-ndjson"}
            answer = client.post(
                "/_bulk?filter_path=errors", content=b"\n".join([*lines, b""]), headers=headers
            )
            assert answer.is_success and not orjson.loads(answer.content)["errors"]

        lines: list[bytes] = []
        size = 0
        for row in rows:
            pair = orjson.dumps({"index": {"_index": "bench", "_id": row[EVENT_ID]}}), orjson.dumps(row)
            length = len(pair[0]) + len(pair[1]) + 2
            if size + length > REQUEST_BYTES:
                send(lines)
                lines, size = [], 0
            lines += pair
            size += length
        send(lines)


def sink(search: OpenSearch, rows: pa.RecordBatch) -> None:
    config = OpensearchSinkConfig.model_validate(
        {"hosts": search.url, "index": "'bench'", "max_request_bytes": REQUEST_BYTES}
    )
    made = config.build(Path())
    made.prepare()
    writer = made.open(Part(BatchRef("incoming", 0, rows.num_rows), 0, 0))
    refusals = writer.write(rows.append_column(INDEX, pa.repeat("bench", rows.num_rows)))
    writer.close()
    assert list(refusals) == []


def measured(search: OpenSearch, count: int, write: Callable[[], None]) -> tuple[float, float]:
    """Rows a second into an empty index, and CPU seconds of this process."""
    search.ask("DELETE", "/bench?ignore_unavailable=true")
    one = {"number_of_shards": 1, "number_of_replicas": 0, "refresh_interval": "-1"}
    search.ask("PUT", "/bench", {"settings": one, "mappings": MAPPINGS})
    began, worked = time.perf_counter(), time.process_time()
    write()
    took, work = time.perf_counter() - began, time.process_time() - worked
    search.ask("POST", "/bench/_refresh")
    assert search.ask("GET", "/bench/_count")["count"] == count
    return count / took, work


def opensearch(count: int, turns: int) -> None:
    rows = dicts(count)
    batch = arrow(rows)
    ways = {"bare loop": lambda: bare(search, rows), "sink": lambda: sink(search, batch)}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    with private_opensearch() as search:
        for turn in range(turns + 1):
            # Who goes first changes; the first turn only warms the server.
            for name in sorted(ways, reverse=turn % 2 == 1):
                rate = measured(search, count, ways[name])
                if turn:
                    found[name].append(rate)
    for name, rates in found.items():
        speeds, works = zip(*rates, strict=True)
        print(
            f"opensearch  {name:10} {statistics.median(speeds):9,.0f} rows/s  "
            f"({min(speeds):,.0f} to {max(speeds):,.0f}), {statistics.median(works):.2f} s of CPU"
        )
    ratios = [ours[0] / theirs[0] for ours, theirs in zip(found["sink"], found["bare loop"], strict=True)]
    print(f"opensearch  sink against bare loop: {statistics.median(ratios):.2f} (median of {turns} turns)")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--turns", type=int, default=5)
    given = parser.parse_args()
    opensearch(given.rows, given.turns)
