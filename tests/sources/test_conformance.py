"""What every source must do, asked of each that comes with Signoff (see `signoff.testing`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from signoff.sources import TYPES
from signoff.testing import SourceConformance, SourceOffer
from tests.sources.offers import OFFERS, RabbitmqOffer


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Ask each source what concerns it."""
    if "offer" not in metafunc.fixturenames:
        return
    kills = metafunc.function.__name__ == "test_a_killed_intake_loses_nothing"
    marks = [pytest.mark.crash] if kills else []
    names = [name for name, offer in sorted(OFFERS.items()) if offer.in_a_process or not kills]
    metafunc.parametrize("offer", [pytest.param(name, marks=marks) for name in names], indirect=True)


@pytest.fixture
def offer(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SourceOffer]:
    if request.param == "rabbitmq":
        RabbitmqOffer.broker = request.getfixturevalue("rabbitmq")
    made: SourceOffer = OFFERS[request.param](tmp_path)
    yield made
    made.finish()


class TestSources(SourceConformance):
    """Of each source with an intake."""


def test_every_source_type_is_tested() -> None:
    """Those that have an intake; a table, which has none, is tested in tests/jobs."""
    assert set(OFFERS) == {name for name, kind in TYPES.items() if not kind.bounded}
