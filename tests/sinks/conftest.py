"""Fixtures of the sinks' tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.brokers import RabbitMQ
from tests.servers import PostgresServer, WebhookServer
from tests.sinks.targets import TARGETS, Place, Target


@pytest.fixture(params=TARGETS)
def target(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    postgres_on_demand: Callable[[], PostgresServer],
    rabbitmq_on_demand: Callable[[], RabbitMQ],
) -> Iterator[Target]:
    place = Place(tmp_path, capsys, postgres_on_demand, rabbitmq_on_demand)
    made = TARGETS[request.param](place)
    yield made
    made.close()


@pytest.fixture
def webhook() -> Iterator[WebhookServer]:
    with WebhookServer() as server:
        yield server
