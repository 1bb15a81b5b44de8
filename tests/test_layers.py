"""The layers of the tree hold, and the check of them fails when one is broken."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grimp
import pytest
from grimp import ImportGraph
from importlinter.application.use_cases import _register_contract_types, read_user_options
from importlinter.application.user_options import UserOptions
from importlinter.configuration import configure
from importlinter.domain.contract import registry

ROOT = Path(__file__).parents[1]

BROKEN = {
    "Imports go downwards only": ("signoff.log.writer", "signoff.engine.engine"),
    "Only testing stands on the surface for plug-ins; the product itself does not": (
        "signoff.sinks.files.sink",
        "signoff.plugin",
    ),
    "Plug-ins see the contracts, not the engine": ("signoff.plugin.configs", "signoff.engine.engine"),
    "The product does not know the application": ("signoff.cli.run", "signoff_alarms.running"),
    "The rooms of the engine, along the way of a batch": (
        "signoff.engine.plan.compile",
        "signoff.engine.batch.runner",
    ),
}
"""For each contract an import that breaks it."""


@pytest.fixture(scope="module")
def options() -> UserOptions:
    configure()
    found = read_user_options(str(ROOT / "pyproject.toml"))
    _register_contract_types(found)
    return found


@pytest.fixture(scope="module")
def graph() -> ImportGraph:
    return grimp.build_graph("signoff", "signoff_alarms", exclude_type_checking_imports=True, cache_dir=None)


def test_every_contract_has_an_import_that_breaks_it(options: UserOptions) -> None:
    assert {contract["name"] for contract in options.contracts_options} == set(BROKEN)


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_layer_is_found(name: str, options: UserOptions, graph: ImportGraph) -> None:
    contract: Mapping[str, Any] = next(one for one in options.contracts_options if one["name"] == name)
    kind = registry.get_contract_class(contract["type"])
    importer, imported = BROKEN[name]
    assert {importer, imported} <= graph.modules
    check = kind(name=name, session_options=options.session_options, contract_options=contract)
    assert check.check(graph, verbose=False).kept
    graph.add_import(importer=importer, imported=imported)
    try:
        assert not check.check(graph, verbose=False).kept
    finally:
        graph.remove_import(importer=importer, imported=imported)
