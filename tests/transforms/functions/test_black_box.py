"""An event that ends the process of a user's function is known by name, and passed over the next time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from pyspark.sql.types import LongType, Row, StructType

from signoff.transforms.functions.black_box import EVENT, Recorded, deaths
from signoff.transforms.functions.row_calls import RowCall
from signoff.transforms.functions.values import Fields

TASK = """
import sys
from pathlib import Path
from pyspark.sql.types import Row
from tests.transforms.functions.test_black_box import EVENT, recorded
call = recorded(Path(sys.argv[1]))
for n in range(10):
    made = call(Row(n=n, **{EVENT: n + 100}))
"""


def deadly(row: dict[str, Any]) -> dict[str, Any]:
    assert list(row) == ["n"], "the function does not see the number of the event"
    if row["n"] == 3:
        os._exit(11)
    if row["n"] == 7:
        os.kill(os.getpid(), signal.SIGSEGV)
    return row


def recorded(directory: Path) -> Recorded:
    return Recorded(RowCall(deadly, Fields(StructType().add("n", LongType()))), "made", directory)


def test_each_try_passes_over_the_events_that_ended_those_before(tmp_path: Path) -> None:
    codes = []
    for _ in range(3):
        task = subprocess.run(
            [sys.executable, "-c", TASK, tmp_path], check=False, cwd=Path(__file__).parents[3]
        )
        codes.append(task.returncode)
    assert codes == [11, -signal.SIGSEGV, 0]
    assert deaths(tmp_path) == {103: "made", 107: "made"}


def test_a_task_that_nobody_dies_of_leaves_no_name(tmp_path: Path) -> None:
    call = recorded(tmp_path)
    assert call(None) == []
    (made,) = call(Row(n=1, **{EVENT: 5}))
    assert made["value"]["value"] == {"n": 1}
    assert deaths(tmp_path) == {}
