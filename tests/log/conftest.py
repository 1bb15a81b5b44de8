"""Logs to write and read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.log.events import small_settings


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def settings() -> Any:
    return small_settings()
