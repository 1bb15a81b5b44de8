"""Fixtures of the sinks' tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.servers import PostgresServer, WebhookServer
from tests.sinks.targets import TARGETS, Target


@pytest.fixture(params=TARGETS)
def target(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    postgres_on_demand: Callable[[], PostgresServer],
) -> Iterator[Target]:
    made = TARGETS[request.param](tmp_path, capsys, postgres_on_demand)
    yield made
    made.close()


@pytest.fixture
def webhook() -> Iterator[WebhookServer]:
    with WebhookServer() as server:
        yield server
