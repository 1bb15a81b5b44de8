"""Tests of pipelines are run by the engine of a run: windows, folds, services, policies; without servers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from signoff.catalog import default
from signoff.pipeline.load import load
from signoff.testing import differences, run_case

pytestmark = pytest.mark.spark

EXAMPLES = Path(__file__).parents[2] / "examples"
HERE = Path(__file__).parent


def failures(file: Path, spark: Any) -> dict[str, str]:
    """What is not as expected, by test."""
    graph = load(file, default(), {}, require_secrets=False)
    assert graph.tests.cases
    found = {}
    for case in graph.tests.cases:
        text = "\n".join(map(str, differences(case, run_case(graph, case, spark=spark))))
        if text:
            found[case.name] = text
    return found


@pytest.mark.parametrize(
    "file", ["files_to_sqlite/pipeline.yaml", "http_to_postgres/pipeline.yaml", "python_functions/tests.yaml"]
)
def test_the_tests_of_the_examples_pass(file: str, spark: Any) -> None:
    assert failures(EXAMPLES / file, spark) == {}


def test_time_windows_folds_routes_and_services_are_those_of_a_run(spark: Any) -> None:
    assert failures(HERE / "everything.yaml", spark) == {}
