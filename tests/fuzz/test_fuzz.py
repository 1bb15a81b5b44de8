"""A second of each target, and every input that ever failed."""

from __future__ import annotations

import pytest

from tests.fuzz.run import feed, load_targets
from tests.fuzz.targets import one

SHORT = 20
FAILED = (
    "pipeline-bytes:1:166",  # !!int of a text
    "pipeline-bytes:1:352",  # !!int of nothing
    "pipeline-bytes:1:687",  # half of a surrogate pair
    "pipeline-bytes:2:82",
    "pipeline-bytes:2:664",
    "http:5:126",  # HEAD with a body that is cut off: an answer without a body, and then one
    "http:5:549",  # more bytes behind the last request of a connection: answered 400 in its place
    "http:5:1517",
    "commands:7:616",  # an event id that is not UTF-8
    "commands:7:1026",  # a stage that is not UTF-8
)
"""Inputs that failed once, `name:seed:number`."""


@pytest.mark.case(46)
@pytest.mark.parametrize("name", sorted(load_targets()))
def test_nothing_that_is_generated_breaks_what_reads_it(name: str) -> None:
    assert feed(name, SHORT, seed=1) == []


@pytest.mark.parametrize("failed", FAILED)
def test_what_failed_once_does_not_fail_again(failed: str) -> None:
    name, seed, number = failed.split(":")
    one(name, int(number), int(seed))
