"""Fixtures of the sinks' tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.brokers import RabbitMQ
from tests.search_server import OpenSearch
from tests.servers import PostgresServer, WebhookServer
from tests.sinks.targets import KILLED, TARGETS, Place, Target, may_be_asked


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Ask each target what concerns it, instead of making a server only to skip the question."""
    if "target" not in metafunc.fixturenames:
        return
    need = getattr(metafunc.function, "needs", None)
    kills = getattr(metafunc.function, "kills", False)
    marks = [pytest.mark.crash] if kills else []
    names = [name for name in (KILLED if kills else TARGETS) if need is None or may_be_asked(name, need)]
    metafunc.parametrize("target", [pytest.param(name, marks=marks) for name in names], indirect=True)


@pytest.fixture
def target(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    postgres_on_demand: Callable[[], PostgresServer],
    rabbitmq_on_demand: Callable[[], RabbitMQ],
    opensearch_on_demand: Callable[[], OpenSearch],
) -> Iterator[Target]:
    place = Place(tmp_path, capsys, postgres_on_demand, rabbitmq_on_demand, opensearch_on_demand)
    made = TARGETS[request.param](place)
    yield made
    made.close()


@pytest.fixture
def webhook() -> Iterator[WebhookServer]:
    with WebhookServer() as server:
        yield server
