"""For all tests: the fast first; one Spark session and one server of a kind, started when first asked for."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from copy import copy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from signoff.pipeline import masking
from tests.brokers import RabbitMQ, private_rabbitmq, rabbitmq_is_installed
from tests.search_server import OpenSearch, opensearch_is_set_up, private_opensearch
from tests.servers import PostgresServer, postgres_programs, private_postgres
from tests.spark_archive import use_archive

use_archive()
os.environ["SIGNOFF_CLASS_ARCHIVE"] = "off"  # the tests have their own
settings.register_profile("tests", deadline=None)  # a busy machine is no failure
settings.load_profile("tests")

_OF_BROKERS = {"rabbitmq"}
_OF_SERVERS = {"postgres", "opensearch"}
_NAMED = ("[postgres", "[opensearch", "[nats", "[redis")
_STARTS = ("broker", "crash")
_OF_PROCESSES = {"real", "real_pair", "killed"}
_SCENES = {"tests/promises/test_account_audit.py", "tests/promises/test_faults_kills.py"}
"""Files with a fixture that several of their tests look at, and that costs a run or more."""


class _OneByOne(LoadScopeScheduling):
    """Gives a worker that is free the next test, or all of a file whose tests share a scene."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return file if file in _SCENES else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _OneByOne:
    return _OneByOne(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs servers, and choose the order."""
    for item in items:
        names = set(getattr(item, "fixturenames", ()))
        if names & _OF_BROKERS or "[rabbitmq" in item.name:
            item.add_marker("broker")
        named = any(server in item.name for server in _NAMED)
        if names & _OF_SERVERS or named or any(map(item.get_closest_marker, _STARTS)):
            item.add_marker("servers")
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    """The fast ones first, so that a simple mistake is seen within seconds; then those with servers.

    Of those with Spark the short ones are last, so that nobody waits long for the last one.
    """
    if item.get_closest_marker("spark"):
        starts_processes = _OF_PROCESSES & set(getattr(item, "fixturenames", ()))
        return 2 if starts_processes or item.get_closest_marker("crash") or "examples" in item.nodeid else 3
    return 1 if item.get_closest_marker("servers") else 0


@pytest.fixture(autouse=True)
def own_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test makes a secret is none for the others: a random one may be any word."""
    monkeypatch.setattr(masking, "_process", copy(masking._process))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The session of a run, but sooner there: Java does not optimise what runs only for seconds. What all
    tests together compile is more than fits where Java then keeps it."""
    from signoff.engine.spark import session
    from signoff.pipeline.settings import SparkSettings

    log_file = tmp_path_factory.mktemp("spark") / "spark.log"
    java = f"{session.SHORT_LIVED} -XX:ReservedCodeCacheSize=240m"
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


@pytest.fixture(scope="session")
def opensearch_on_demand() -> Iterator[Callable[[], OpenSearch]]:
    running: list[OpenSearch] = []
    with ExitStack() as stack:

        def server() -> OpenSearch:
            if not opensearch_is_set_up():
                pytest.skip("OpenSearch is not set up (scripts/set-up-opensearch, with Maven)")
            if not running:
                running.append(stack.enter_context(private_opensearch()))
            running[0].start()  # the test before may have killed it
            return running[0]

        yield server


@pytest.fixture
def opensearch(opensearch_on_demand: Callable[[], OpenSearch]) -> OpenSearch:
    return opensearch_on_demand()
