"""What a dedupe has decided is read from its index; nothing is claimed."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from signoff.ledger import Ledger
from signoff.ledger.fates import Fates
from signoff.stateful.key_claims import Arrival
from signoff.stateful.key_index import FILE, KeyIndex
from signoff.watch.tap.repeats import _Lookup
from tests.ledger.attempts import attempt

SOURCE, STEP, DEFINITION = "incoming", "once", '["n"]'


def said(state: Path, *numbers: int) -> list[str]:
    """What is said of the rows of some events: nothing of one that is the first."""
    rows = pa.array([{"sequence": n, "child": ""} for n in numbers] + [None])
    found = _Lookup(state, SOURCE, STEP, DEFINITION, "seen before")(rows).to_pylist()
    assert found[-1] == {"ends": None, "error": None}, "a row that is not asked about"
    return [str(each["error"]) if each["error"] else "" for each in found[:-1]]


def test_a_row_is_the_first_waits_or_was_dropped_as_the_index_says(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.open_batch(SOURCE, 0, 3, ["table"])
    index = KeyIndex(tmp_path / FILE)
    keys = {0: b"a" * 16, 1: b"a" * 16, 2: b"b" * 16}
    arrivals = [Arrival(n, "", 1_000 + n, key) for n, key in keys.items()]
    index.claim(STEP, DEFINITION, SOURCE, arrivals, 10**9, Fates(ledger))
    waits = "w:repeats incoming/0, which is not settled yet"
    assert said(tmp_path, 0, 1, 2) == ["", waits, ""]
    assert said(tmp_path, 3) == ["w:it is not decided yet whether it repeats another event"]
    attempt(ledger, 0, 3, delivered=[0, 2], owed=[])
    assert said(tmp_path, 0, 1, 2) == ["", "d:seen before", ""], "also before the wait is forgotten"
    assert index.owned(STEP, DEFINITION, SOURCE, 0, 9) == {(0, ""), (2, "")}, "nobody else took a key"
    index.close()
    ledger.close()
