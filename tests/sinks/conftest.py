"""Fixtures of the sinks' tests: one PostgreSQL for all of them, started when first asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.servers import PostgresServer, WebhookServer, postgres_programs, private_postgres
from tests.sinks.targets import TARGETS, Target


@pytest.fixture(scope="session")
def postgres_on_demand() -> Iterator[Callable[[], PostgresServer]]:
    running: list[PostgresServer] = []
    with ExitStack() as stack:

        def server() -> PostgresServer:
            if postgres_programs() is None:
                pytest.skip("PostgreSQL is not installed")
            if not running:
                running.append(stack.enter_context(private_postgres()))
            return running[0]

        yield server


@pytest.fixture
def postgres(postgres_on_demand: Callable[[], PostgresServer]) -> PostgresServer:
    return postgres_on_demand()


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
