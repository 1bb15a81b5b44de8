from __future__ import annotations

from pathlib import Path

import pytest

from signoff.page.standalone import page_app
from signoff.page.watched import WatchedPipeline
from tests.operate.state import fill
from tests.page.client import Client


@pytest.fixture
def pipeline(tmp_path: Path) -> WatchedPipeline:
    """It has been looked at once; no thread goes on looking."""
    found = WatchedPipeline(fill(tmp_path))
    found.sample()
    return found


@pytest.fixture
def client(pipeline: WatchedPipeline) -> Client:
    return Client(page_app(pipeline))
