"""For all tests: one Spark session, started when first asked for, and the fast tests first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What needs no Spark comes first, so that a simple mistake is seen within seconds."""
    items.sort(key=lambda item: item.get_closest_marker("spark") is not None)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The session of a run, but sooner there: Java does not optimise what runs only for seconds."""
    from signoff.engine import session
    from signoff.pipeline.model import SparkSettings

    log_file = tmp_path_factory.mktemp("spark") / "spark.log"
    log4j = Path(session.__file__).with_name("log4j2.properties")
    java = f"-Dlog4j2.configurationFile=file:{log4j} -Dsignoff.log={log_file} -XX:TieredStopAtLevel=1"
    settings = SparkSettings(master="local[2]", config={"spark.driver.extraJavaOptions": java})
    started = session.start_session(
        "tests", settings, log_file=log_file, python_path=Path(__file__).parents[1]
    )
    yield started
    started.stop()
