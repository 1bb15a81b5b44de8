"""For the promises: products that are ended when the test is over, and servers for them to talk to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.promises.product import Inline, Product
from tests.servers import PostgresServer, WebhookServer, private_postgres


@pytest.fixture
def webhook() -> Iterator[WebhookServer]:
    with WebhookServer() as server:
        yield server


@pytest.fixture
def webhooks() -> Iterator[list[WebhookServer]]:
    """Three, for the sinks `first`, `second` and `third`."""
    with WebhookServer() as first, WebhookServer() as second, WebhookServer() as third:
        yield [first, second, third]


@pytest.fixture
def inline(tmp_path: Path, spark: Any) -> Iterator[Callable[..., Inline]]:
    """Make an `Inline` product in the test's directory: `inline(sources=…, sinks=…)`.

    Ask for it before a server, which then goes first and leaves nobody waiting for an answer.
    """
    made: list[Inline] = []

    def make(folder: str = "", **nodes: Any) -> Inline:
        made.append(Inline(tmp_path / folder, spark, **nodes))
        return made[-1]

    yield make
    for product in made:
        product.close()


@pytest.fixture
def real(tmp_path: Path) -> Iterator[Callable[..., Product]]:
    """Make a `Product` in the test's directory: real processes all the way."""
    made: list[Product] = []

    def make(**nodes: Any) -> Product:
        made.append(Product(tmp_path, **nodes))
        return made[-1]

    yield make
    for product in made:
        product.close()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with private_postgres() as server:
        yield server


@pytest.fixture
def real_pair(tmp_path: Path) -> Iterator[Callable[..., tuple[Product, Product]]]:
    """Make two `Product`s side by side: real processes all the way."""
    made: list[Product] = []

    def make(*pipelines: dict[str, Any]) -> tuple[Product, Product]:
        made.extend(Product(tmp_path / str(nodes["name"]), **nodes) for nodes in pipelines)
        return made[-2], made[-1]

    yield make
    for product in made:
        product.close()
