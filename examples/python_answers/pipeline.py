"""A function that says what became of each event: pass, split, drop, fail for good, fail for now.

signoff run pipeline.py --once     or     python pipeline.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import signoff
from signoff import Pipeline

PRICES = Path(__file__).parent / "prices.txt"

pipeline = Pipeline("orders")
pipeline.source("incoming", "files", path="./in/*.jsonl")
pipeline.transform(
    "parsed", "parse_json", input="incoming", schema="customer STRING, items ARRAY<STRING>, test BOOLEAN"
)


@pipeline.transform(
    input="parsed",
    mode="rows",
    schema="customer STRING, item STRING, price DOUBLE",
    retry={"initial_ms": 200, "max_ms": 5000},
)
def priced(order: dict[str, Any]) -> Any:
    """One row for each item of an order."""
    if order["test"]:
        return signoff.drop("a test order")
    if not order["customer"]:
        raise signoff.fail("an order without a customer")
    try:
        lines = PRICES.read_text().splitlines()
    except FileNotFoundError:
        raise signoff.fail("the price list is not there", transient=True) from None
    prices = dict(line.split() for line in lines)
    return [
        {"customer": order["customer"], "item": item, "price": float(prices[item])}
        if item in prices
        else signoff.fail(f"{item} has no price")
        for item in order["items"] or ()
    ]


pipeline.sink("table", "sqlite", input=priced, path="./out/orders.db", table="items")

if __name__ == "__main__":
    raise SystemExit(pipeline.run(once=True))
