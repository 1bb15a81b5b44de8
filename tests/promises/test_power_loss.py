"""Case 45, all parts together: the power is cut when everything is acknowledged, and a window is still open.

The short form of `make powerloss`, which cuts it at any moment, and for every kind of pipeline. Here the log
in front of the window has segments of a few rows, and the cut comes when some of them are removed: what was
in them is nowhere but in Spark's checkpoint. Without the syncs of `checkpoint_sync` this test fails.
"""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from signoff.pipeline.model import LogSettings
from tests.powerloss.mount import missing
from tests.powerloss.scene import Scene
from tests.promises.product import Inline

pytestmark = [
    pytest.mark.spark,
    pytest.mark.servers,
    pytest.mark.skipif(bool(missing()), reason=f"no disk that forgets: {missing()}"),
]


@pytest.mark.case(45)
def test_events_that_are_acknowledged_and_in_an_open_window_survive_a_loss_of_power(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = partial(LogSettings, segment_bytes=64 * 1024)
    monkeypatch.setattr("signoff.link.handover.LogSettings", small)
    scene = Scene("window", tmp_path, lambda directory: Inline(directory, spark), payload=24_000)
    recorded = scene.record(scene.prepared(), files=3, events=9)
    place = recorded.window_log_trimmed()
    for luck in (None, random.Random(1)):
        scene.after(recorded.disk_after(place, luck), recorded.given(place), f"luck: {luck}")
