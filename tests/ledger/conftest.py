from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from signoff.ledger import DeadLetters, Ledger


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def ledger(state: Path) -> Iterator[Ledger]:
    with Ledger(state / "ledger.db", now=lambda: 1000.0) as opened:
        yield opened


@pytest.fixture
def letters(state: Path) -> Iterator[DeadLetters]:
    with DeadLetters(state / "dead_letters.db", now=lambda: 1000.0) as opened:
        yield opened
