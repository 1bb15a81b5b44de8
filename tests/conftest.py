"""For all tests: the fast first; one Spark session, PostgreSQL and RabbitMQ, started when first asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.brokers import RabbitMQ, private_rabbitmq, rabbitmq_is_installed
from tests.servers import PostgresServer, postgres_programs, private_postgres


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The fast ones first, so that a simple mistake is seen within seconds; then those with a broker."""
    for item in items:
        if "rabbitmq" in getattr(item, "fixturenames", ()) or "[rabbitmq" in item.name:
            item.add_marker("broker")
    items.sort(key=_slowness)


def _slowness(item: pytest.Item) -> int:
    return 2 if item.get_closest_marker("spark") else 1 if item.get_closest_marker("broker") else 0


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The session of a run, but sooner there: Java does not optimise what runs only for seconds."""
    from signoff.engine import session
    from signoff.pipeline.model import SparkSettings

    log_file = tmp_path_factory.mktemp("spark") / "spark.log"
    java = "-XX:TieredStopAtLevel=1"
    settings = SparkSettings(master="local[2]", config={"spark.driver.extraJavaOptions": java})
    started = session.start_session(
        "tests", settings, log_file=log_file, python_path=Path(__file__).parents[1]
    )
    yield started
    started.stop()


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


@pytest.fixture(scope="session")
def rabbitmq_on_demand() -> Iterator[Callable[[], RabbitMQ]]:
    running: list[RabbitMQ] = []
    with ExitStack() as stack:

        def broker() -> RabbitMQ:
            if not rabbitmq_is_installed():
                pytest.skip("RabbitMQ is not installed")
            if not running:
                running.append(stack.enter_context(private_rabbitmq()))
            running[0].start()  # the test before may have killed it
            return running[0]

        yield broker


@pytest.fixture
def rabbitmq(rabbitmq_on_demand: Callable[[], RabbitMQ]) -> RabbitMQ:
    return rabbitmq_on_demand()
