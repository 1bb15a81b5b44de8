"""What the contract says of every sink, asked of each that comes with Signoff (see `signoff.testing`)."""

from __future__ import annotations

import pytest

from signoff.sinks import TYPES
from signoff.testing import SinkConformance
from signoff.testing.conformance.described import describes_itself


class TestSinks(SinkConformance):
    """Its fixture `target` is each of `tests.sinks.targets`."""


@pytest.mark.parametrize("name", TYPES)
def test_every_type_describes_itself(name: str) -> None:
    assert TYPES[name].model_fields["type"].default == name
    describes_itself(TYPES[name], "sink")
